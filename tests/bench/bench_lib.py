"""What the comparison scripts share: running `stoker bench`."""
import json
import subprocess
from pathlib import Path
from statistics import median


def stoker(build, *args):
    """What `stoker ... --json` prints."""
    args = [Path(build) / 'stoker', *args, '--json']
    return json.loads(subprocess.run([str(a) for a in args], stdout=subprocess.PIPE, check=True, text=True).stdout)


def bench(build, model, *flags, **options):
    """The objects of `stoker bench` by the kind of test, 'pp' or 'tg', or by 'limits'. Options are `ram_percent`, of all experts, and flags such as t=2."""
    if (percent := options.pop('ram_percent', None)) is not None:
        options['ram'] = int(stoker(build, 'inspect', model)['expert_bytes'] * percent / 100)
    values = [x for k, v in options.items() if v is not None for x in (('-' if len(k) == 1 else '--') + k, v)]
    return {'limits' if o['test'] == 'limits' else o['test'][:2]: o for o in stoker(build, 'bench', '-m', model, '-q', *flags, *values)}


def spread(values):
    return f'{median(values):9.2f}   ({min(values):.2f} to {max(values):.2f}, {len(values)} runs)'
