//! One rank of the smallest job, in Rust by the C API: hello_all_reduce ADDRESS RANK RANKS, once for each rank. It needs no
//! crate, and a rustc of 1.63 or later: `rustc -O hello_all_reduce.rs`.
use std::ffi::{CStr, CString};
use std::os::raw::{c_char, c_int, c_void};
use std::ptr::{null, null_mut};

// Of netsum/netsum.h, what is called here. Its enumerations are as wide as int.
#[link(name = "netsum")]
extern "C" {
    fn netsum_last_error() -> *const c_char;
    fn netsum_options_create() -> *mut c_void;
    fn netsum_options_set(options: *mut c_void, name: *const c_char, value: *const c_char) -> c_int;
    fn netsum_options_destroy(options: *mut c_void);
    fn netsum_connect(options: *const c_void, job: *const c_char, rank: u32, world_size: u32, communicator: *mut *mut c_void) -> c_int;
    fn netsum_destroy(communicator: *mut c_void);
    fn netsum_all_reduce(
        communicator: *mut c_void,
        input: *const f32,
        output: *mut f32,
        length: usize,
        dtype: c_int,
        op: c_int,
        call: *const c_void,
    ) -> c_int;
}
const NETSUM_FLOAT32: c_int = 0;
const NETSUM_SUM: c_int = 0;

fn check(status: c_int) -> Result<(), String> {
    match status {
        0 => Ok(()),
        _ => Err(unsafe { CStr::from_ptr(netsum_last_error()) }.to_string_lossy().into_owned()),
    }
}

struct Communicator(*mut c_void);

impl Communicator {
    fn connect(address: &str, job: &str, rank: u32, ranks: u32) -> Result<Communicator, String> {
        let (name, address, job) = (text("NETSUM_SWITCH"), text(address), text(job));
        let mut communicator = Communicator(null_mut());
        unsafe {
            let options = netsum_options_create();
            let joined = check(netsum_options_set(options, name.as_ptr(), address.as_ptr()))
                .and_then(|_| check(netsum_connect(options, job.as_ptr(), rank, ranks, &mut communicator.0)));
            netsum_options_destroy(options);
            joined.map(|_| communicator)
        }
    }

    fn all_reduce(&mut self, values: &mut [f32]) -> Result<(), String> {
        let (place, length) = (values.as_mut_ptr(), values.len());
        check(unsafe { netsum_all_reduce(self.0, place, place, length, NETSUM_FLOAT32, NETSUM_SUM, null()) })
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        unsafe { netsum_destroy(self.0) }
    }
}

fn text(words: &str) -> CString {
    CString::new(words).expect("an argument has no zero bytes")
}

fn run(address: &str, rank: u32, ranks: u32) -> Result<(), String> {
    let mut communicator = Communicator::connect(address, "hello-rust", rank, ranks)?;
    let mut gradients = vec![(rank + 1) as f32; 100_000];
    communicator.all_reduce(&mut gradients)?;
    println!("rank {} of {}: every element is {}", rank, ranks, gradients[gradients.len() - 1]);
    Ok(())
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |i: usize| arguments.get(i).and_then(|text| text.parse().ok());
    let (rank, ranks) = match (number(2), number(3)) {
        (Some(rank), Some(ranks)) => (rank, ranks),
        _ => {
            eprintln!("hello_all_reduce ADDRESS RANK RANKS");
            std::process::exit(2);
        }
    };
    if let Err(error) = run(&arguments[1], rank, ranks) {
        eprintln!("hello_all_reduce: {}", error);
        std::process::exit(1);
    }
}
