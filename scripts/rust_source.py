"""Reads Rust sources as text, for scripts/tidy and scripts/house. No compiler: fast, and good enough to count."""
import bisect
import functools
import pathlib
import re

# Folders and files that hold tests; `examples` are shown to readers and are not counted as product code either.
TEST_PARTS = {"tests", "conformance", "benches", "examples"}
ROOTS = ("crates", "sdk", "bench")

TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)"""
    r"""|(?P<raw>\bb?r(?P<hashes>\#*)".*?"(?P=hashes))"""
    r"""|(?P<string>"(?:\\.|[^"\\])*")"""
    r"""|(?P<char>'(?:\\(?:x[0-9a-fA-F]{2}|u\{[^}]*\}|.)|[^\\'\n])')""",
    re.S,
)
TYPE = re.compile(r"^([ \t]*)(?:pub(?:\([^)]*\))?\s+)?(struct|enum|union|trait|type)\s+([A-Z]\w*)", re.M)
TRAIT = re.compile(r"^[ \t]*(?:pub(?:\([^)]*\))?\s+)?(?:unsafe\s+)?trait\s+(\w+)[^{;]*\{", re.M)
IMPL = re.compile(r"^[ \t]*impl\b([^{;]*)\{", re.M)
TEST_ITEM = re.compile(r"#\[cfg\((?:all\()?test\b[^\]]*\]\s*(?:#\[[^\]]*\]\s*)*")
TEST_MODULE = re.compile(r"#\[cfg\((?:all\()?test\b[^\]]*\]\s*(?:#\[path[^\]]*\]\s*)?(?:pub(?:\([^)]*\))?\s+)?mod\s+(\w+)\s*;")
PUBLIC = re.compile(
    r"^[ \t]*pub\s+(?:(?:async|const|unsafe|default)\s+)*(?:(?P<kind>fn|struct|enum|union|trait|type|const|static|mod)\s+(?P<name>\w+)"
    r"|(?P<field>[a-z_]\w*)\s*:(?!:))"
)

PUBLIC_BLOCK = re.compile(r"^[ \t]*pub\s+(?:unsafe\s+)?(trait|enum)\s+\w+[^{;]*\{", re.M)
METHOD = re.compile(r"\s*(?:(?:async|const|unsafe)\s+)*fn\s+(\w+)")
VARIANT = re.compile(r"\s*([A-Z]\w*)\s*(?:[,({=]|$)")


def blank(text):
    """The same text without its characters, line by line."""
    return re.sub(r"[^\n]", " ", text)


def closing(text, opened):
    """The place behind the brace that closes the one at `opened`."""
    depth = 0
    for brace in re.finditer(r"[{}]", text[opened:]):
        depth += 1 if brace.group() == "{" else -1
        if depth == 0:
            return opened + brace.end()
    return len(text)


class File:
    """One source file. `code` has neither comments nor the contents of strings; `product` has no test items either."""

    def __init__(self, root, path):
        self.path = path
        self.name = str(path.relative_to(root))
        self.text = path.read_text()
        self.lines = self.text.splitlines()
        parts = pathlib.PurePath(self.name).parts
        self.is_test = bool(TEST_PARTS & set(parts[:-1])) or parts[-1] in ("tests.rs", "test.rs")
        self.crate = "/".join(parts[:2]) if parts[0] != "bench" else "bench"

    @functools.cached_property
    def tokens(self):
        return list(TOKEN.finditer(self.text))

    @functools.cached_property
    def code(self):
        return TOKEN.sub(lambda token: blank(token.group()), self.text)

    @functools.cached_property
    def product(self):
        if self.is_test:
            return blank(self.code)
        text = self.code
        for item in reversed(list(TEST_ITEM.finditer(text))):
            end = re.compile(r"[{;]").search(text, item.end())
            if end:
                stop = closing(text, end.start()) if end.group() == "{" else end.end()
                text = text[: item.start()] + blank(text[item.start() : stop]) + text[stop:]
        return text

    @functools.cached_property
    def product_lines(self):
        """Numbers of the lines that are not in a test, comments and empty lines included."""
        if self.is_test:
            return []
        code, product = self.code.splitlines(), self.product.splitlines()
        inside, kept = False, []
        for number, (before, after) in enumerate(zip(code, product)):
            gone = bool(before.strip()) and not after.strip()
            # A comment or an empty line within a test module has code of that module around it.
            inside = gone or (inside and not before.strip())
            if not inside:
                kept.append(number)
        return kept

    def line_of(self, place):
        return bisect.bisect_right(self._starts, place)

    @functools.cached_property
    def _starts(self):
        return [0] + [match.end() for match in re.finditer("\n", self.text)]

    def comments(self):
        for token in self.tokens:
            if token.group("comment"):
                yield self.line_of(token.start()), token.group()

    def strings(self):
        """Literals outside tests, with the line they begin in."""
        for token in self.tokens:
            literal = token.group("raw") or token.group("string")
            before = len(self.code[: token.start()].rstrip()) - 1 if literal else -1
            if before >= 0 and self.product[before] != " ":
                yield self.line_of(token.start()), re.sub(r'^b?r?#*"|"#*$', "", literal)

    def types(self):
        for match in TYPE.finditer(self.product):
            # An indented `type` belongs to a trait or an impl.
            if match.group(2) != "type" or not match.group(1):
                yield match.group(3), self.line_of(match.start(3))

    def blocks(self, pattern):
        for match in pattern.finditer(self.product):
            yield match, self.product[match.end() : closing(self.product, match.end() - 1) - 1]

    def public_items(self):
        """Every public item outside tests, with fields, variants and methods of traits: line, name, whether it has a doc line."""
        lines = self.product.splitlines()
        for number in self.product_lines:
            match = PUBLIC.match(lines[number]) if number < len(lines) else None
            if match:
                yield number + 1, match.group("name") or match.group("field"), self._is_documented(number, match.group("kind"), match.group("name"))
        for match, block in self.blocks(PUBLIC_BLOCK):
            member = METHOD if match.group(1) == "trait" else VARIANT
            depth, number = 0, self.line_of(match.end() - 1) - 1
            for line in block.split("\n"):
                found = member.match(line) if depth == 0 else None
                if found:
                    yield number + 1, found.group(1), self._is_documented(number, None, None)
                depth += sum(map(line.count, "{([")) - sum(map(line.count, "})]"))
                number += 1

    def _is_documented(self, number, kind, name):
        above = number - 1
        while above >= 0 and re.match(r"\s*(#\[|\)\]|\]|[\w(].*\)\]$)", self.lines[above]) and not re.match(r"\s*#\[doc", self.lines[above]):
            above -= 1
        if above >= 0 and re.match(r"\s*(///|#\[doc)", self.lines[above]):
            return True
        if kind == "mod":
            folder = self.path.parent if self.path.stem in ("lib", "main", "mod") else self.path.with_suffix("")
            for inner in (folder / f"{name}.rs", folder / name / "mod.rs"):
                if inner.exists() and inner.read_text().lstrip().startswith("//!"):
                    return True
        return False


def load(root):
    """All Rust files of the workspace below `root`, those that are only compiled for tests marked as such."""
    root = pathlib.Path(root)
    files = [File(root, path) for part in ROOTS for path in sorted((root / part).rglob("*.rs")) if "target" not in path.parts]
    by_path = {file.path: file for file in files}
    for file in files:
        folder = file.path.parent if file.path.stem in ("lib", "main", "mod") else file.path.with_suffix("")
        for name in TEST_MODULE.findall(file.code):
            for path in (folder / f"{name}.rs", folder / name / "mod.rs"):
                if path in by_path:
                    by_path[path].is_test = True
    return files


def types_by_name(files):
    """Where each type name is defined: name -> [(crate, file, line)]."""
    found = {}
    for file in files:
        for name, line in file.types():
            found.setdefault(name, []).append((file.crate, file.name, line))
    return found


def functions_at_top(block, pattern):
    """How many functions a block has itself, not within another block."""
    depth, count = 0, 0
    for match in re.finditer(r"[{}]|" + pattern, block):
        if match.group() == "{":
            depth += 1
        elif match.group() == "}":
            depth -= 1
        elif depth == 0:
            count += 1
    return count


def methods(files):
    """Methods per trait, and public methods per type over all its `impl` blocks: two dicts by `crate::Name`."""
    traits, types = {}, {}
    for file in files:
        for match, block in file.blocks(TRAIT):
            key = f"{file.crate}::{match.group(1)}"
            traits[key] = traits.get(key, 0) + functions_at_top(block, r"\bfn\s+\w+")
        for match, block in file.blocks(IMPL):
            header = re.sub(r"\bwhere\b.*", "", match.group(1), flags=re.S)
            while "<" in (flat := re.sub(r"<[^<>]*>", "", header.replace("->", ""))) and flat != header:
                header = flat
            header = flat
            if re.search(r"\sfor\s", header) or not (name := re.search(r"(\w+)\s*$", header.strip())):
                continue
            key = f"{file.crate}::{name.group(1)}"
            types[key] = types.get(key, 0) + functions_at_top(block, r"\bpub\s+(?:(?:async|const|unsafe)\s+)*fn\s+\w+")
    return traits, types


STATEMENT = re.compile(r"\s*(?:select|insert|update|delete|with|create|alter|drop)\b", re.I)


def statements(files, folder):
    """SQL statements below a folder, as they read without white space and the style of their parameters."""
    found = {}
    for file in files:
        if folder in file.name:
            for line, literal in file.strings():
                if STATEMENT.match(literal):
                    plain = re.sub(r"\\\n\s*", "", literal)
                    plain = re.sub(r"[?$]\d+(?:::[a-z0-9\[\]]+)?", "?", plain)
                    plain = re.sub(r"\s+", " ", plain).strip().lower()
                    if len(plain) > 20:
                        found.setdefault(plain, []).append(f"{file.name}:{line}")
    return found
