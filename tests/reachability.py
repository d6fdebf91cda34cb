"""Which definitions of a package the program can reach, by the names its source uses.

Conservative: what is found unreachable is used by nothing. A name counts as a use of what it is bound to in its module,
an attribute as a use of everything of that name, in any class or module that is reached. What is reached by a text
alone (`getattr`, `methodcaller`) counts where the text is written in the call.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

_BY_TEXT = frozenset({"getattr", "methodcaller", "attrgetter"})
_PLAIN = frozenset({"Exception", "Protocol", "NamedTuple", "Enum", "StrEnum", "TypedDict"})  # they call nothing of ours
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(slots=True)
class Definition:
    """A module, class, function or method, and what its own code mentions."""

    name: str  # with its module, as in "dpsql.privacy.accounting.Price.fits_in"
    module: str
    docstring: str
    mentions: set[str] = field(default_factory=set)  # names, bound in the module or in its imports
    attributes: set[str] = field(default_factory=set)
    imports: set[str] = field(default_factory=set)  # modules, or members of modules
    members: set[str] = field(default_factory=set)  # of a class: its methods; of a module: what a decorator hands on
    bases: list[str] = field(default_factory=list)


class Source:
    """All modules of a package, read but not imported."""

    def __init__(self, folder: Path) -> None:
        self.definitions: dict[str, Definition] = {}
        # By module: what its names may stand for. Functions of one module may import different things under one name.
        self._bound: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        self._named: dict[str, set[str]] = defaultdict(set)
        self._modules: set[str] = set()
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder.parent).with_suffix("").parts
            module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            self._read(module, ast.parse(path.read_text(encoding="utf-8")))

    def reached_from(self, roots: Collection[str]) -> set[str]:
        """The roots and all that their code mentions, and so on."""
        reached: set[str] = set()
        attributes: set[str] = set()
        waiting = list(roots)
        while waiting:
            name = waiting.pop()
            if name in reached or name not in self.definitions:
                continue
            reached.add(name)
            found = self.definitions[name]
            waiting += self._targets(found)
            attributes |= found.attributes
            # A member is reached by its name, once its class or module is.
            waiting += [
                member
                for attribute in attributes
                for member in self._named.get(attribute, ())
                if member not in reached and member.rpartition(".")[0] in reached
            ]
        return reached

    # --- reading ---

    def _read(self, module: str, tree: ast.Module) -> None:
        self._modules.add(module)
        own = self._define(module, module, tree)
        self._body(tree.body, module, module, own)

    def _define(self, name: str, module: str, node: ast.Module | _Definition) -> Definition:
        found = Definition(name, module, ast.get_docstring(node) or "")
        self.definitions[name] = found
        return found

    def _body(self, body: list[ast.stmt], prefix: str, module: str, around: Definition) -> None:
        for statement in body:
            if isinstance(statement, _Definition):
                self._definition(statement, prefix, module, around)
            else:
                if prefix == module:
                    self._bind_assignments(statement, module)
                self._mentions(statement, module, around)

    def _definition(self, node: _Definition, prefix: str, module: str, around: Definition) -> None:
        name = f"{prefix}.{node.name}"
        found = self._define(name, module, node)
        if prefix == module:
            self._bound[module][node.name].add(name)
        self._named[node.name].add(name)
        for decorator in node.decorator_list:
            self._mentions(decorator, module, around)
            if not isinstance(node, ast.ClassDef) and _is_registered(decorator):
                around.members.add(name)
        if isinstance(node, ast.ClassDef):
            for base in node.bases:
                self._mentions(base, module, found)
            found.bases = [ast.unparse(base) for base in node.bases]
            found.members |= {f"{name}.{each.name}" for each in node.body if isinstance(each, _Definition)}
            self._body(node.body, name, module, found)
        else:
            for part in ast.iter_child_nodes(node):
                if part not in node.decorator_list:
                    self._mentions(part, module, found)

    def _bind_assignments(self, statement: ast.stmt, module: str) -> None:
        """`name = …` at the top of a module stands for the module's own code."""
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        for target in targets:
            if isinstance(target, ast.Name):
                self._bound[module][target.id].add(module)

    def _mentions(self, node: ast.AST, module: str, found: Definition) -> None:
        for part in ast.walk(node):
            if isinstance(part, ast.Import):
                for alias in part.names:
                    found.imports.add(alias.name)
                    self._bound[module][alias.asname or alias.name.partition(".")[0]].add(
                        alias.name if alias.asname else alias.name.partition(".")[0]
                    )
            elif isinstance(part, ast.ImportFrom) and part.module is not None:
                for alias in part.names:
                    found.imports |= {part.module, f"{part.module}.{alias.name}"}
                    self._bound[module][alias.asname or alias.name].add(f"{part.module}.{alias.name}")
            elif isinstance(part, ast.Name):
                found.mentions.add(part.id)
            elif isinstance(part, ast.Attribute):
                found.attributes.add(part.attr)
                if isinstance(part.value, ast.Name):
                    found.mentions.add(f"{part.value.id}.{part.attr}")
            elif isinstance(part, ast.MatchClass):
                found.attributes |= set(part.kwd_attrs)
            elif isinstance(part, ast.Call) and _called(part) in _BY_TEXT:
                texts = (each.value for each in part.args if isinstance(each, ast.Constant))
                found.attributes |= {text for text in texts if isinstance(text, str)}

    # --- following ---

    def _resolved(self, module: str, name: str) -> Iterator[str]:
        """What a name of a module may stand for, through imports of imports; nothing where it is not ours."""
        first, _, rest = name.partition(".")
        for target in self._bound[module].get(first, ()):
            whole = f"{target}.{rest}" if rest else target
            owner, _, last = whole.rpartition(".")
            if whole in self.definitions:
                yield whole
            elif owner in self.definitions and owner != module:
                yield from self._resolved(owner, last)

    def _targets(self, found: Definition) -> Iterator[str]:
        """What a definition's code leads to. Whoever reaches a member has run its module, and its packages before."""
        is_framework = any(base not in _PLAIN and not any(self._resolved(found.module, base)) for base in found.bases)
        for member in found.members:
            if found.name in self._modules or is_framework or _is_special(member.rpartition(".")[2]):
                yield member
        yield from _packages(found.module)
        for imported in found.imports:
            yield from (each for each in _packages(imported) if each in self._modules)
        for mention in found.mentions:
            yield from self._resolved(found.module, mention)


def _packages(module: str) -> Iterator[str]:
    parts = module.split(".")
    return (".".join(parts[:length]) for length in range(1, len(parts) + 1))


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _called(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")


def _is_registered(decorator: ast.expr) -> bool:
    """`@click.command()` or `@group.command()`: the decorator hands the function to somebody who calls it."""
    return isinstance(decorator, ast.Call) and _called(decorator) in ("command", "group")
