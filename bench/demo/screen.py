"""The trainings while they run: accuracy over seconds, redrawn in place on a terminal; elsewhere a line for each look."""
import shutil
import sys

ROWS = 12
MARKS = {"gloo": ("o", "33"), "netsum": ("#", "32")}  # mark, colour


def canvas(trainings, limit, columns):
    """Rows of (mark, backend) or None: accuracy 40 to 90 % upwards, seconds to the right."""
    cells = [[None] * columns for _ in range(ROWS)]
    for training in trainings:
        for seconds, accuracy in training.points:
            row = round((0.9 - min(max(accuracy, 0.4), 0.9)) / 0.5 * (ROWS - 1))
            cells[row][min(columns - 1, int(seconds / limit * (columns - 1)))] = training.backend
    return cells


def chart(trainings, target, limit, columns):
    lines = []
    target_row = round((0.9 - target) / 0.5 * (ROWS - 1))
    for number, row in enumerate(canvas(trainings, limit, columns)):
        label = f"{90 - 50 * number / (ROWS - 1):5.0f} % |" if number % 3 == 0 or number == ROWS - 1 else "        |"
        empty = "-" if number == target_row else " "
        lines.append(label + "".join(empty if cell is None else f"\033[{MARKS[cell][1]}m{MARKS[cell][0]}\033[m" for cell in row))
    lines.append("        +" + "-" * columns)
    lines.append(" " * 9 + "0 s" + f"{limit:.0f} s".rjust(columns - 3))
    return lines


class Screen:
    def __init__(self, steps, target, expected, out=sys.stdout):
        self.steps, self.target, self.limit, self.out = steps, target, expected, out
        self.live = out.isatty()
        self.drawn = self.told = 0
        self.trainings = []

    def begin(self, training):
        self.trainings.append(training)
        self.drawn = self.told = 0

    def show(self, training):
        if training.seconds > self.limit:
            self.limit = training.seconds * 1.2
        if self.live:
            columns = max(20, min(90, shutil.get_terminal_size().columns - 12))
            lines = chart(self.trainings, min(self.target, 0.9), self.limit, columns)
            status = (f"  {MARKS[each.backend][0]} {each.backend:6} step {each.step:2}/{self.steps}  {each.seconds:6.1f} s  test accuracy "
                      f"{100 * each.points[-1][1]:.1f} %" for each in self.trainings if each.points)
            lines += status
            self.out.write((f"\033[{self.drawn}F" if self.drawn else "") + "".join(line + "\033[K\n" for line in lines))
            self.drawn = len(lines)
        elif len(training.points) > self.told:
            self.told = len(training.points)
            self.out.write(f"  {training.backend:6} step {training.step:2}/{self.steps}  {training.seconds:6.1f} s  test accuracy "
                           f"{100 * training.points[-1][1]:.1f} %\n")
        self.out.flush()
