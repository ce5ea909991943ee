#!/usr/bin/env python3
"""Writes tests/data/golden: what Hugging Face transformers says of the random models of tests/tools/make_model.

usage: make_golden.py BUILD_DIR OUT_DIR

The models are made again by whoever needs them (the same bytes everywhere: their SHA-256 is kept here); of the logits of a long prompt only some rows
are kept, NAME.logits float32 [n_rows, n_vocab]. Products with quantized matrices see their input as int8 (hf_reference.py). `noise` says how far
rounding alone carries two correct implementations apart, as the float64 run beside the float32 one: the largest difference (`max`), and the median
over rows of rms(difference) / rms(logits) (`relative`). It is 1e-5 for float weights; with int8 inputs one rounding that falls the other way
changes all that follows, so that logits agree to the size of the quantization error alone, about 1e-2, while a wrong layout gives 1.
"""
import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from hf_reference import Model

MODELS = {
    'r352-mixed': dict(preset='r352', options=[], n_prompt=300),
    'r768-mixed': dict(preset='r768', options=[], n_prompt=1500),
    'r2048-mixed': dict(preset='r2048', options=[], n_prompt=300),
    'r352-f32': dict(preset='r352', options=['types=f32', 'form=single'], n_prompt=300),
    'r768-bf16': dict(preset='r768', options=['types=bf16', 'layers=2', 'experts=8'], n_prompt=1500),
    'r2048-f16': dict(preset='r2048', options=['types=f16', 'layers=1', 'form=fused'], n_prompt=1100),
}
ROWS = [0, 1, 31, 63, 64, 200, 299, 700, 1023, 1024, 1199, 1499]


def main():
    build, out = Path(sys.argv[1]), Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    golden = {}
    for name, m in MODELS.items():
        with tempfile.TemporaryDirectory() as d:
            path = Path(d) / 'model.gguf'
            subprocess.run([build / 'tests' / 'make_model', m['preset'], path, *m['options']], check=True)
            model, sha = Model(path), hashlib.sha256(path.read_bytes()).hexdigest()
        n_vocab = model.weights['token_embd.weight'].shape[0]
        prompt = [int(x) for x in np.random.Generator(np.random.PCG64(7)).integers(0, n_vocab, m['n_prompt'])]
        rows = [r for r in ROWS if r < len(prompt)]
        with model.quantized_inputs():
            logits = model.logits(prompt)[rows].astype('<f4')
        model.hf.double()
        model.storages = {p.untyped_storage().data_ptr() for k, p in model.hf.state_dict().items() if k in set(model.storages.values())}
        with model.quantized_inputs():
            d = model.logits(prompt)[rows] - logits
        noise = dict(max=float(np.abs(d).max()), relative=float(np.median(np.sqrt((d ** 2).mean(1) / (logits ** 2).mean(1)))))
        (out / f'{name}.logits').write_bytes(logits.tobytes())
        golden[name] = dict(preset=m['preset'], options=m['options'], sha256=sha, n_vocab=n_vocab, rows=rows, noise=noise, prompt=prompt)
        print(f'{name}: logits std {logits.std():.3f}, noise {noise}', flush=True)
    (out / 'golden.json').write_text(json.dumps(golden).replace('}, ', '},\n') + '\n')


if __name__ == '__main__':
    main()
