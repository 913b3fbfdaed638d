"""netsum sums the gradients of distributed training in the network."""
