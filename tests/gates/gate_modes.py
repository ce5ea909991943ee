#!/usr/bin/env python3
"""What tests/bench/modes.py claims of the modes, on a few of its cases: all that does not rest on means over many."""
import subprocess
import sys

from harness import BUILD, TESTS, check, expect, finish


def quick():
    out = subprocess.run([sys.executable, str(TESTS / 'bench' / 'modes.py'), str(BUILD), '--quick'], capture_output=True, text=True, timeout=900, check=False)
    expect(out.stderr == '', out.stderr)
    claims = [line for line in out.stdout.splitlines() if line[:6] in ('ok    ', 'FAILED')]
    expect(len(claims) >= 8, out.stdout)
    for line in claims:
        means_over_many = ', of kt' in line
        expect(line.startswith('ok') or means_over_many, line)


check('hybrid is near its optimum and behind no other mode', quick)
finish()
