#!/usr/bin/env python3
"""What is written about the program is what the program does: the man page lists each verb's options, and the commands in README.md are understood."""
import re
import shlex

from harness import STOKER, TESTS, check, expect, finish, stoker

TOP = TESTS.parent
MAN = (TOP / 'src' / 'cli' / 'stoker.1').read_text()


def help_text(verb):
    """--help, an option a line."""
    text = stoker(verb, '--help').expect_success().out.decode()
    wide = [line for line in text.splitlines() if line.startswith('  -') and len(line) > 110 or line.startswith(' ' * 39) and len(line) > 110]
    expect(not wide, f'wider than 110 columns: {wide}')
    return text.replace('\n' + ' ' * 39, ' ')


def help_options(verb):
    """{frozenset of names: what its value is called} from --help."""
    options = {}
    for line in help_text(verb).splitlines():
        if m := re.match(r'  (-(?:\S+, )*-?\S+)( [^ a-z]\S*| \w+\|\S+)?(?: |$)', line):
            names = frozenset(x.strip().lstrip('-') for x in m[1].split(','))
            options[names] = (m[2] or '').strip()
    expect(options.pop(frozenset({'h', 'help'}), None) == '', 'no --help')
    return options


def man_sections():
    """{title: options as help_options gives them}"""
    sections = {}
    for title, body in re.findall(r'^\.Ss Options of (.*?)\n(.*?)^\.El', MAN, re.M | re.S):
        sections[title] = {}
        for item in re.findall(r'^\.It (Fl .*)$', body, re.M):
            flags, _, value = item.partition(' Ar ')
            names = frozenset(x.strip().removeprefix('Fl').strip().removeprefix('\\-') for x in flags.split(' , '))
            sections[title][names] = value
    return sections


def man_equals_help(verb):
    want, got = help_options(verb), {}
    for title, options in man_sections().items():
        if verb in re.split(r', | and ', title):
            got |= options
    for where, one, other in (('--help', want, got), ('stoker.1', got, want)):
        expect(one.items() <= other.items(), f'only in {where}: {[(sorted(k), v) for k, v in one.items() if other.get(k) != v]}')
    return f'{len(want)} options'


def man_defaults(verb):
    """A default in brackets of --help stands at that option of the man page as `Default: X.` or, where verbs differ, `else X`; 0 goes without saying."""
    bodies = [b for title, b in re.findall(r'^\.Ss Options of (.*?)\n(.*?)^\.El', MAN, re.M | re.S) if verb in re.split(r', | and ', title)]
    n = 0
    for name, default in re.findall(r'^  (?:-\S+, )*--(\S+)(?: \S+)?  .*\[(\S+)\]$', help_text(verb), re.M):
        if default == '0':
            continue
        text = ''.join(re.findall(rf'^\.It [^\n]*Fl \\-{name}(?: [^\n]*)?\n(.*?)(?=^\.It|\Z)', ''.join(bodies), re.M | re.S)).replace('\\-', '-')
        expect(re.search(rf'^Default: {re.escape(default)}( for|\.$)|^else {re.escape(default)}\.$', text, re.M), f'--{name} has the default {default}; the man page says {text!r}')
        n += 1
    expect(n > 0, 'no defaults found')
    return f'{n} defaults'


def verbs():
    return re.findall(r'^  (\w+)  +\S', stoker('help').expect_success().out.decode(), re.M)


def man_verbs():
    expect(re.findall(r'^\.Cm (\w+)$', MAN.split('.Sh DESCRIPTION')[0], re.M) == verbs(), 'the verbs of the synopsis differ from `stoker help`')


def readme_commands():
    """Every `stoker VERB ...` in a code block parses (files that are not there are another matter)."""
    text = (TOP / 'README.md').read_text()
    blocks = '\n'.join(re.findall(r'^```\w*\n(.*?)^```', text, re.M | re.S))
    commands = re.findall(r'^(?:\$ )?(?:build/)?stoker (\w+.*?)(?: {2,}#.*)?$', blocks, re.M)
    expect(commands, 'no command found')
    for command in commands:
        words = shlex.split(command.split(' | ')[0].split(' < ')[0].split(' > ')[0])
        expect(words[0] in verbs(), f'`stoker {command}`: no such verb')
        r = stoker(*words, '--help')
        expect(r.rc == 0, f'`stoker {command}`: {r.last()}')
    scripts = set(re.findall(r'^\./run (\w+)', blocks, re.M))
    expect(scripts and scripts <= set(re.findall(r'\./run (\w+) ', (TOP / 'run').read_text())), f'{scripts}')
    return f'{len(commands)} commands'


def readme_files():
    """Paths that README.md names are there."""
    text = (TOP / 'README.md').read_text()
    for path in set(re.findall(r'\]\((?!https?:|#)([^)]+)\)', text)) | set(re.findall(r'`((?:src|tests|experts|cache|cpu|io|traces)/[\w./]*)`', text)):
        expect((TOP / path).exists(), f'README.md names {path}, which is not there')


def main():
    expect(STOKER.exists(), f'{STOKER} is not built')
    for verb in verbs():
        if verb not in ('version', 'help'):
            check(f'docs: stoker.1 and `stoker {verb} --help`', man_equals_help, verb)
    for verb in ('run', 'perplexity', 'logits', 'bench', 'doctor'):
        check(f'docs: the defaults of `stoker {verb}` in stoker.1', man_defaults, verb)
    check('docs: the verbs in stoker.1', man_verbs)
    check('docs: the commands in README.md', readme_commands)
    check('docs: the files in README.md', readme_files)
    finish()


main()
