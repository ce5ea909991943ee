"""Where the fields of a GGUF file lie, for gates that damage them one by one."""
import struct

SIZE = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY = 8, 9


class Layout:
    """fields: name -> (offset, bytes); of keys `KEY`, `KEY.type`, `KEY.length`; of tensors `TENSOR.dims`, `.dim0`, `.type`, `.offset`, `.name`."""

    def __init__(self, data):
        self.data, self.at, self.fields = data, 0, {}
        self.field('magic', 4)
        self.field('version', 4)
        n_tensor, n_key = self.number('n_tensor', 8), self.number('n_key', 8)
        for _ in range(n_key):
            start, key = self.at, self.string()
            self.fields[f'{key}.key'] = (start, 8)
            self.value(key, self.number(f'{key}.type', 4))
        for _ in range(n_tensor):
            start, name = self.at, self.string()
            self.fields[f'{name}.name'] = (start + 8, len(name))
            for d in range(self.number(f'{name}.dims', 4)):
                self.field(f'{name}.dim{d}', 8)
            self.field(f'{name}.type', 4)
            self.field(f'{name}.offset', 8)
        self.header_bytes = self.at

    def field(self, name, n):
        self.fields[name] = (self.at, n)
        self.at += n
        return self.data[self.at - n:self.at]

    def number(self, name, n):
        return int.from_bytes(self.field(name, n), 'little')

    def string(self):
        n = struct.unpack_from('<Q', self.data, self.at)[0]
        self.at += 8 + n
        return self.data[self.at - n:self.at].decode()

    def value(self, key, kind):
        if kind == STRING:
            self.fields[f'{key}.length'] = (self.at, 8)
            start = self.at
            self.fields[key] = (start + 8, len(self.string().encode()))
        elif kind == ARRAY:
            item, n = self.number(f'{key}.item', 4), self.number(f'{key}.length', 8)
            self.fields[key] = (self.at, 0)
            for _ in range(n):
                if item == STRING:
                    self.string()
                else:
                    self.at += SIZE[item]
        else:
            self.field(key, SIZE[kind])
