"""What the comparison scripts share: running bench_model and reading its CSV."""
import csv
import io
import subprocess
from pathlib import Path
from statistics import median


def bench_model(build, model, **keys):
    """Rows of bench_model as dictionaries of numbers (texts where they are none)."""
    args = [Path(build) / 'tests' / 'bench_model', model, *(f'{k}={v}' for k, v in keys.items() if v is not None)]
    out = subprocess.run(args, stdout=subprocess.PIPE, check=True, text=True).stdout

    def number(x):
        try:
            return float(x)
        except ValueError:
            return x
    return [{k: number(v) for k, v in row.items()} for row in csv.DictReader(io.StringIO(out))]


def column(rows, test, name):
    return [r[name] for r in rows if r['test'] == test]


def middle(rows, test, name):
    return median(column(rows, test, name))


def spread(values):
    return f'{median(values):9.2f}   ({min(values):.2f} to {max(values):.2f}, {len(values)} runs)'
