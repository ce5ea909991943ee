"""The outside oracle: Hugging Face transformers in float32 on the dequantized weights of a GGUF file.

Needs torch, transformers, gguf, numpy (PyPI). Used by make_tiny_models.py and make_golden.py; see those for how to run it.

quantized_inputs() makes every product with a quantized matrix see its input as an int8 kernel sees it: groups of 32, d = amax / 127,
round half to even. What remains between the oracle and an int8 kernel is float32 rounding, so that the bound of a comparison can be tight.
"""
import contextlib

import gguf
import numpy as np
import torch
from transformers import MixtralConfig, MixtralForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

torch.set_num_threads(2)

FLOAT = {gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16, gguf.GGMLQuantizationType.BF16}
LAYER = {
    'input_layernorm': 'attn_norm', 'post_attention_layernorm': 'ffn_norm', 'self_attn.q_proj': 'attn_q', 'self_attn.k_proj': 'attn_k',
    'self_attn.v_proj': 'attn_v', 'self_attn.o_proj': 'attn_output', 'self_attn.q_norm': 'attn_q_norm', 'self_attn.k_norm': 'attn_k_norm',
    'mlp.gate': 'ffn_gate_inp',
}


def interleave(w, n_head):
    """Rows of a half-split RoPE head (i turns with i + d/2) in the order of the `llama` architecture (2i turns with 2i + 1)."""
    d = w.shape[0] // n_head
    order = np.arange(d).reshape(2, d // 2).T.reshape(-1)
    return w.reshape(n_head, d, -1)[:, order].reshape(w.shape)


def deinterleave(w, n_head):
    d = w.shape[0] // n_head
    order = np.arange(d).reshape(d // 2, 2).T.reshape(-1)
    return w.reshape(n_head, d, -1)[:, order].reshape(w.shape)


class Model:
    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        self.arch = reader.fields['general.architecture'].contents()
        self.field = lambda k, default=None: reader.fields[f'{self.arch}.{k}'].contents() if f'{self.arch}.{k}' in reader.fields else default
        self.weights, self.types = {}, {}
        for t in reader.tensors:
            shape = tuple(int(x) for x in reversed(t.shape))
            self.weights[t.name] = np.array(gguf.quants.dequantize(t.data, t.tensor_type), np.float32).reshape(shape)
            self.types[t.name] = t.tensor_type
        self._stack()
        self.hf = self._build()
        self.storages = {}  # of parameters that are quantized in the file
        self._fill()

    def _stack(self):
        """Experts in one tensor each, or with gate and up fused, as three stacked tensors."""
        for i in range(self.field('block_count')):
            fused = f'blk.{i}.ffn_gate_up_exps.weight'
            if fused in self.weights:
                halves = np.split(self.weights.pop(fused), 2, axis=1)
                for part, w in zip(('gate', 'up'), halves):
                    self.weights[f'blk.{i}.ffn_{part}_exps.weight'], self.types[f'blk.{i}.ffn_{part}_exps.weight'] = w, self.types[fused]
            for part in ('gate', 'up', 'down'):
                single = [f'blk.{i}.ffn_{part}.{e}.weight' for e in range(self.field('expert_count'))]
                if single[0] in self.weights:
                    self.weights[f'blk.{i}.ffn_{part}_exps.weight'] = np.stack([self.weights.pop(n) for n in single])
                    self.types[f'blk.{i}.ffn_{part}_exps.weight'] = self.types[single[0]]

    def _build(self):
        f, embd = self.field, self.weights['token_embd.weight']
        common = dict(
            vocab_size=embd.shape[0], hidden_size=embd.shape[1], num_hidden_layers=f('block_count'), num_attention_heads=f('attention.head_count'),
            num_key_value_heads=f('attention.head_count_kv'), head_dim=f('attention.key_length', f('embedding_length') // f('attention.head_count')),
            rope_parameters=dict(rope_type='default', rope_theta=float(f('rope.freq_base'))), rms_norm_eps=f('attention.layer_norm_rms_epsilon'),
            num_experts_per_tok=f('expert_used_count'), tie_word_embeddings='output.weight' not in self.weights,
            max_position_embeddings=f('context_length'), attn_implementation='eager')
        if self.arch == 'qwen3moe':
            model = Qwen3MoeForCausalLM(Qwen3MoeConfig(
                num_experts=f('expert_count'), moe_intermediate_size=f('expert_feed_forward_length'), intermediate_size=f('feed_forward_length'),
                norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[], **common))
        else:
            model = MixtralForCausalLM(MixtralConfig(
                num_local_experts=f('expert_count'), intermediate_size=f('feed_forward_length'), sliding_window=None, **common))
        model.set_experts_implementation('eager')
        return model.float().eval()

    def _tensor(self, key):
        """The GGUF names and the weight behind a parameter of the Hugging Face model."""
        if key == 'model.embed_tokens.weight':
            return ['token_embd.weight'], None
        if key == 'lm_head.weight':
            return ['output.weight' if 'output.weight' in self.weights else 'token_embd.weight'], None
        if key == 'model.norm.weight':
            return ['output_norm.weight'], None
        _, _, layer, rest = key.split('.', 3)
        blk = f'blk.{layer}.'
        if rest == 'mlp.experts.gate_up_proj':
            return [blk + 'ffn_gate_exps.weight', blk + 'ffn_up_exps.weight'], None
        if rest == 'mlp.experts.down_proj':
            return [blk + 'ffn_down_exps.weight'], None
        heads = {'attn_q': self.field('attention.head_count'), 'attn_k': self.field('attention.head_count_kv')}
        name = LAYER[rest.removesuffix('.weight')]
        return [blk + name + '.weight'], heads.get(name) if self.arch == 'llama' else None

    def _fill(self):
        with torch.no_grad():
            for key, p in self.hf.state_dict().items():
                names, n_head = self._tensor(key)
                w = np.concatenate([self.weights[n] for n in names], axis=1) if len(names) > 1 else self.weights[names[0]]
                p.copy_(torch.from_numpy(deinterleave(w, n_head) if n_head else w))
                quantized = {self.types[n] not in FLOAT for n in names}
                assert len(quantized) == 1, f'{names}: gate and up must both be quantized or both be float'
                if quantized.pop():
                    self.storages[p.untyped_storage().data_ptr()] = key

    @contextlib.contextmanager
    def quantized_inputs(self):
        linear = torch.nn.functional.linear

        def rounded(x, w, bias=None):
            if w.untyped_storage().data_ptr() in self.storages:
                g = x.reshape(-1, 32)
                amax = g.abs().amax(1, keepdim=True)
                q = torch.round(g * (127.0 / amax.clamp(min=1e-30)))
                x = (q * (amax / 127.0)).reshape(x.shape)
            return linear(x, w, bias)

        torch.nn.functional.linear = rounded
        try:
            yield
        finally:
            torch.nn.functional.linear = linear

    @torch.no_grad()
    def logits(self, ids):
        """[n, n_vocab] float32."""
        return self.hf(torch.tensor([ids]), use_cache=False).logits[0].numpy()

    @torch.no_grad()
    def greedy(self, ids, n):
        """n tokens, and the smallest gap between the two best logits."""
        ids, gap = list(ids), np.inf
        for _ in range(n):
            top = torch.from_numpy(self.logits(ids)[-1]).topk(2)
            gap = min(gap, float(top.values[0] - top.values[1]))
            ids.append(int(top.indices[0]))
        return ids[-n:], gap

    @torch.no_grad()
    def router_gap(self, ids):
        """The smallest gap between the last expert chosen and the first one not chosen, in router logits."""
        gaps, k = [], self.field('expert_used_count')
        hooks = [m.register_forward_hook(lambda _, __, out: gaps.append(float((lambda t: (t[:, k - 1] - t[:, k]).min())(out[0].topk(k + 1).values))))
                 for name, m in self.hf.named_modules() if name.endswith('mlp.gate')]
        self.logits(ids)
        for h in hooks:
            h.remove()
        return min(gaps)
