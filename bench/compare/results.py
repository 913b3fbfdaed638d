"""The JSON that all measurements end up in: read, merged by processor and by what was measured, and written."""
import json
import os
import re


def read(path):
    if not path or not os.path.exists(path):
        return {"processors": {}}
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def write(path, results):
    """By way of a new file: an interrupt costs nothing."""
    text = json.dumps(results, indent=1, sort_keys=True)
    text = re.sub(r"\[[-+\d.e,\snul]*\]", lambda numbers: " ".join(numbers[0].split()), text)  # a list of numbers is one line
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(text + "\n")
    os.replace(path + ".new", path)


def name_of(processor):
    """One line for a processor (machine.processor(); None: not recorded). What differs in it is kept apart."""
    vectors, caches = processor["vectors"], processor["caches"]
    known = {"family": processor["family"] and f"family {processor['family']}", "vector extensions": vectors and " and ".join(extensions(vectors)),
             "caches": caches and ", ".join(f"{level} {size}" for level, size in sorted(caches.items()))}
    unknown = [what for what, text in known.items() if not text]
    return f"{processor['model']} ({'; '.join([*filter(None, known.values()), *([', '.join(unknown) + ' not recorded'] if unknown else [])])})"


def extensions(vectors):
    """Those that our vector code tells apart, by the names that people know."""
    widest = next((name for flag, name in (("avx512bw", "AVX-512"), ("avx2", "AVX2"), ("asimd", "NEON")) if flag in vectors), "neither AVX2 nor NEON")
    return [widest, *(["VPCLMULQDQ"] if "vpclmulqdq" in vectors else [])]


def merge(old, processor, new):
    """Rows and runs of that processor that were measured anew replace those of the same name."""
    name = name_of(processor)
    before = old["processors"].get(name, {"rows": {}, "runs": {}})
    merged = {"processor": processor, "rows": {**before["rows"], **new["rows"]}, "runs": {**before["runs"], **new["runs"]}}
    for key in ("timeline", "growth", "profiles"):
        merged[key] = new.get(key) or before.get(key)
    return {"processors": {**old["processors"], name: merged}}


def measurements(part):
    """All of one processor that says when and where it was made."""
    return [*part["rows"].values(), *part["runs"].values(), *filter(None, (part["timeline"], part["growth"], part["profiles"]))]


def newest_first(found):
    """What was measured on each processor, the processor that was measured last first."""
    return sorted(found["processors"].values(), key=lambda part: max((each["date"] for each in measurements(part)), default=""), reverse=True)
