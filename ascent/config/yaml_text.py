"""YAML with the 1.2 core rules for plain scalars. Duplicate keys and alias bombs are errors.

PyYAML follows YAML 1.1, where `1e-6` is a string, `on` is true, `1:30` is ninety and `2026-01-01` is a date. Here a
plain scalar is null, a boolean, an integer, a float or a string. Reading and writing share these rules.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

import yaml

CORE_RULES = (
    ("tag:yaml.org,2002:null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("tag:yaml.org,2002:bool", r"^(?:true|True|TRUE|false|False|FALSE)$", list("tTfF")),
    ("tag:yaml.org,2002:int", r"^[-+]?[0-9]+$", list("-+0123456789")),
    (
        "tag:yaml.org,2002:float",
        r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$",
        list("-+.0123456789"),
    ),
)

MAX_DEPTH, MAX_VALUES = 100, 100_000  # an alias counts with all its values each time it is used


class Reader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, list[Any]] = {}  # noqa: RUF012 - PyYAML declares it so

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = 0
        self._sizes: dict[int, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        mark = self.peek_event().start_mark
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise yaml.composer.ComposerError(
                None, None, f"nested more than {MAX_DEPTH} deep; write it flat", mark
            )
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is not None and self._size(node) > MAX_VALUES:
            raise yaml.composer.ComposerError(
                None,
                None,
                f"its aliases expand to more than {MAX_VALUES} values; write them out",
                mark,
            )
        return node

    def _size(self, node: yaml.Node) -> int:
        """Number of values in a node. A node that contains itself is refused by the constructor later."""
        if id(node) not in self._sizes and isinstance(node, yaml.CollectionNode):
            self._sizes[id(node)] = 1
            inside = [
                part
                for each in node.value
                for part in (each if isinstance(each, tuple) else (each,))
            ]
            self._sizes[id(node)] += sum(map(self._size, inside))
        return self._sizes.get(id(node), 1)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        mapping: dict[Hashable, Any] = {}
        for key_node, value_node in node.value:
            key = self.construct_object(key_node, deep=True)
            mark = key_node.start_mark
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} must be a word", mark
                )
            if key == "<<":
                raise yaml.constructor.ConstructorError(
                    None, None, "merge keys (<<) are not read; write them out", mark
                )
            if key in mapping:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is given twice", mark
                )
            mapping[key] = self.construct_object(value_node, deep=True)
        return mapping

    def construct_integer(self, node: yaml.ScalarNode) -> int:
        try:
            return int(node.value)  # YAML 1.1 reads 010 as eight
        except ValueError:  # Python limits the number of digits
            message = f"a number of {len(node.value)} digits; no key takes one so large"
            raise yaml.constructor.ConstructorError(None, None, message, node.start_mark) from None


class Writer(yaml.SafeDumper):
    yaml_implicit_resolvers: dict[str, list[Any]] = {}  # noqa: RUF012 - PyYAML declares it so

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, text: str) -> yaml.ScalarNode:
        """Double quotes escape the rarer line breaks, which PyYAML folds into spaces otherwise."""
        rare = any(sign in text for sign in "\x85\u2028\u2029")
        return self.represent_scalar("tag:yaml.org,2002:str", text, style='"' if rare else None)


for _tag, _pattern, _starts in CORE_RULES:
    for _kind in (Reader, Writer):
        _kind.add_implicit_resolver(_tag, re.compile(_pattern), _starts)
Reader.add_constructor("tag:yaml.org,2002:int", Reader.construct_integer)
Writer.add_representer(str, Writer.represent_text)


def read(text: str, origin: str) -> Any:
    """The value of one YAML document; ValueError with `origin` and the line when it is not valid."""
    try:
        return yaml.load(text, Loader=Reader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark else ""
        raise ValueError(
            f"{origin}{line}: not valid YAML: {error.problem or error.context}"
        ) from None
    except yaml.reader.ReaderError as error:
        line = f", line {text.count(chr(10), 0, error.position) + 1}"
        raise ValueError(
            f"{origin}{line}: not valid YAML: {str(error).splitlines()[0]}; remove it"
        ) from None


def write(value: Any) -> str:
    """Block-style YAML in the order given."""
    return yaml.dump(value, Dumper=Writer, sort_keys=False, allow_unicode=True, width=120)
