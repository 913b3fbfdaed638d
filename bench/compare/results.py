"""The JSON that all measurements end up in: read, merged by what was measured, and written."""
import json
import os
import re

EMPTY = {"rows": {}, "runs": {}, "timeline": None, "growth": None, "profiles": None}


def read(path):
    if not path or not os.path.exists(path):
        return json.loads(json.dumps(EMPTY))
    with open(path, encoding="utf-8") as file:
        return {**EMPTY, **json.load(file)}


def write(path, results):
    """By way of a new file: an interrupt costs nothing."""
    text = json.dumps(results, indent=1, sort_keys=True)
    text = re.sub(r"\[[-+\d.e,\snul]*\]", lambda numbers: " ".join(numbers[0].split()), text)  # a list of numbers is one line
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(text + "\n")
    os.replace(path + ".new", path)


def merge(old, new):
    """Rows and runs that were measured anew replace those of the same name."""
    merged = {"rows": {**old["rows"], **new["rows"]}, "runs": {**old["runs"], **new["runs"]}}
    for key in ("timeline", "growth", "profiles"):
        merged[key] = new.get(key) or old.get(key)
    return merged
