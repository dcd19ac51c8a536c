#!/usr/bin/env python3
"""Packs scikit-learn's digits.csv.gz into digits.bin, the form that the train example embeds.

    pip download scikit-learn --no-deps && unzip scikit_learn-*.whl sklearn/datasets/data/digits.csv.gz
    ./pack_digits.py sklearn/datasets/data/digits.csv.gz digits.bin

Each line of the table holds 64 pixels (0..16, row by row) and the digit that they show. Each record of
digits.bin holds the same 65 values in the same order, one byte a value; there is no header. DATA.md beside
this script names the source and the licence.
"""

import csv
import gzip
import sys

PIXELS = 64


def pack(table):
    """Returns the records of all lines; a line that is not an image is an error that names it."""
    packed = bytearray()
    for number, row in enumerate(csv.reader(table), start=1):
        values = [int(float(field)) for field in row]
        *pixels, digit = values
        if len(pixels) != PIXELS or not all(0 <= p <= 16 for p in pixels) or not 0 <= digit <= 9:
            sys.exit(f"line {number} is not 64 pixels of 0..16 and a digit of 0..9: {row}")
        packed.extend(values)
    return bytes(packed)


def main():
    if len(sys.argv) != 3:
        sys.exit(f"usage: {sys.argv[0]} digits.csv.gz digits.bin")
    source, target = sys.argv[1:]
    with gzip.open(source, "rt", newline="") as table:
        packed = pack(table)
    with open(target, "wb") as file:
        file.write(packed)
    print(f"{target}: {len(packed) // (PIXELS + 1)} images, {len(packed)} bytes")


if __name__ == "__main__":
    main()
