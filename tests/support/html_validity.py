"""Whether HTML is as the standard wants it: what a parser must repair, and what may stand in what.

A parser of the standard (html5lib) tells what is unclosed, misplaced or doubled; the rules here tell what it
lets pass: names used twice or nowhere, blocks inside text, controls inside controls, uneven tables.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from xml.etree.ElementTree import Element

import html5lib
from html5lib.constants import E as SENTENCES

from tests.support.html_rules import (
    BLOCKS,
    BOOLEANS,
    CHILDREN,
    CONTROLS,
    EVERYWHERE,
    FREE,
    HEADINGS,
    LABELABLE,
    MOMENT,
    NAMES_OTHERS,
    NUMBERS,
    OBSOLETE,
    OBSOLETE_ATTRIBUTES,
    OWN,
    PARENTS,
    VALUES,
    WORDS_ONLY,
)

SVG = "{http://www.w3.org/2000/svg}svg"
Rule = Callable[["Tree"], Iterator[str]]


@dataclass(frozen=True)
class Tree:
    """Parsed HTML: each element with its ancestors, nearest first. ``whole`` is a document, not a part."""

    root: Element
    ancestors: dict[Element, tuple[Element, ...]]
    whole: bool

    @classmethod
    def of(cls, root: Element, *, whole: bool) -> Tree:
        """Return the tree under ``root``, without the insides of drawings (SVG)."""
        ancestors: dict[Element, tuple[Element, ...]] = {}

        def go(element: Element, above: tuple[Element, ...]) -> None:
            ancestors[element] = above
            if element.tag != SVG:
                for child in element:
                    if isinstance(child.tag, str):
                        go(child, (element, *above))

        go(root, ())
        return cls(root, ancestors, whole)

    def __iter__(self) -> Iterator[Element]:
        return (element for element in self.ancestors if element.tag not in ("DOCUMENT_FRAGMENT",))

    def parent(self, element: Element) -> str:
        """Return the name of the element around ``element``; empty at the edge."""
        above = self.ancestors[element]
        return str(above[0].tag) if above and above[0].tag != "DOCUMENT_FRAGMENT" else ""


def faults(html: str, container: str | None = None) -> list[str]:
    """Return what is wrong with ``html``: a document, or what stands inside a ``container``."""
    parser = html5lib.HTMLParser(tree=html5lib.getTreeBuilder("etree"), namespaceHTMLElements=False)
    root = parser.parse(html) if container is None else parser.parseFragment(html, container=container)
    lines = html.split("\n")
    found = [
        f"{code}: {SENTENCES.get(code, code) % data if data else SENTENCES.get(code, code)} "
        f"near {lines[min(line, len(lines)) - 1][max(0, column - 60) : column + 20]!r}"
        for (line, column), code, data in parser.errors
    ]
    tree = Tree.of(root, whole=container is None)
    return found + [said for rule in RULES for said in rule(tree)]


def named_once(tree: Tree) -> Iterator[str]:
    """Every id is one word and used once, drawings included."""
    ids = [element.get("id") or "" for element in tree.root.iter() if "id" in element.attrib]
    yield from (f"id {name!r} is used {count} times" for name, count in Counter(ids).items() if count > 1)
    yield from (f"id {name!r} is no name" for name in ids if not name or re.search(r"\s", name))


def names_exist(tree: Tree) -> Iterator[str]:
    """What a document's labels, fields and descriptions name is there, and can be labelled."""
    if not tree.whole:
        return
    by_id = {element.get("id"): element for element in tree.root.iter() if "id" in element.attrib}
    for element in tree:
        for attribute in NAMES_OTHERS:
            for name in (element.get(attribute) or "").split():
                if name not in by_id:
                    yield f"<{element.tag} {attribute}> names {name!r}, which is not there"
        labelled = by_id.get(element.get("for") or "")
        if element.tag == "label" and labelled is not None and labelled.tag not in LABELABLE:
            yield f"a label is for <{labelled.tag}>, which cannot have one"


def blocks_stand_among_blocks(tree: Tree) -> Iterator[str]:
    """No block stands inside words."""
    for element in tree:
        if element.tag in BLOCKS:
            for above in tree.ancestors[element]:
                if above.tag in WORDS_ONLY and not (above.tag == "summary" and element.tag in HEADINGS):
                    yield f"<{element.tag}> stands inside <{above.tag}>"
                if above.tag not in ("a", "ins", "del"):
                    break


def is_control(element: Element) -> bool:
    """Return whether people can press or fill ``element``."""
    if element.tag == "a":
        return "href" in element.attrib
    return element.tag in CONTROLS and element.get("type") != "hidden"


def controls_stand_alone(tree: Tree) -> Iterator[str]:
    """No control stands inside a link or a button, no label in a label, one field to a label."""
    for element in tree:
        above = [each.tag for each in tree.ancestors[element]]
        if (is_control(element) or "tabindex" in element.attrib) and {"a", "button"} & set(above):
            yield f"<{element.tag}> stands inside a link or a button"
        if element.tag in ("label", "form") and element.tag in above:
            yield f"<{element.tag}> stands inside another"
        if element.tag == "label":
            fields = [
                each for each in element.iter() if each.tag in LABELABLE and each.get("type") != "hidden"
            ]
            if len(fields) > 1:
                yield "a label has several fields"


def right_company(tree: Tree) -> Iterator[str]:
    """Lists hold items, tables rows, rows cells; items, terms and summaries stand where they belong."""
    for element in tree:
        allowed = CHILDREN.get(str(element.tag))
        for child in element if allowed else ():
            if isinstance(child.tag, str) and allowed and child.tag not in allowed:
                yield f"<{child.tag}> stands in <{element.tag}>"
        parents = PARENTS.get(str(element.tag))
        if parents and tree.parent(element) not in (*parents, *(() if tree.whole else ("",))):
            yield f"<{element.tag}> stands in <{tree.parent(element)}>"
        children = [child.tag for child in element if isinstance(child.tag, str)]
        if element.tag == "details" and (children[:1] != ["summary"] or children.count("summary") > 1):
            yield "<details> does not begin with its one summary"
        if (
            element.tag == "dl"
            and "div" not in children
            and (children[:1] != ["dt"] or children[-1:] != ["dd"])
        ):
            yield f"<dl> is not terms with what they mean: {children}"
        if element.tag in CHILDREN and element.tag != "select" and (element.text or "").strip():
            yield f"words stand in <{element.tag}>"


def tables_are_even(tree: Tree) -> Iterator[str]:
    """Each row of a table covers the same columns."""
    for table in (element for element in tree if element.tag == "table"):
        # Cells that reach down into the next rows: how many more rows each.
        reaching: list[int] = []
        widths = set()
        for row in table.iter("tr"):
            width = len(reaching)
            reaching = [left - 1 for left in reaching if left > 1]
            for cell in row:
                if isinstance(cell.tag, str):
                    span = int(cell.get("colspan") or 1)
                    width += span
                    down = int(cell.get("rowspan") or 1) - 1
                    reaching += [down] * span if down > 0 else []
            widths.add(width)
        if len(widths) > 1:
            yield f"the rows of a table are {sorted(widths)} columns wide"


def attributes_exist(tree: Tree) -> Iterator[str]:
    """Every attribute is one of its element's, with a value it may have."""
    for element in tree:
        tag = str(element.tag)
        if tag == SVG:
            continue
        if tag in OBSOLETE:
            yield f"<{tag}> is obsolete"
        for name, value in element.attrib.items():
            known = name in EVERYWHERE or name in OWN.get(tag, "").split() or FREE.match(name)
            if name in OBSOLETE_ATTRIBUTES.get(tag, ()) or not known:
                yield f"<{tag}> has no attribute {name!r}"
            allowed = VALUES.get((tag, name))
            if allowed is not None and value not in allowed:
                yield f"<{tag} {name}> is not {value!r}"
            if name in NUMBERS and not re.fullmatch(r"-?\d+", value):
                yield f"<{tag} {name}> is no number: {value!r}"
            if name in BOOLEANS and value not in ("", name):
                yield f"<{tag} {name}> is there or not, and never {value!r}"
            if name in ("href", "src", "action", "formaction") and re.search(r"[\s<>\"`{}|\\^]", value):
                yield f"<{tag} {name}> is no address: {value!r}"
            if name == "datetime" and not MOMENT.match(value):
                yield f"<{tag} {name}> is no moment: {value!r}"


def fields_are_named(tree: Tree) -> Iterator[str]:
    """Pictures have words; what may be missing is said, what must be there is."""
    for element in tree:
        if element.tag == "img" and "alt" not in element.attrib:
            yield "<img> has no alt"
        if element.tag in ("progress", "meter"):
            value, most = element.get("value"), float(element.get("max") or 1)
            if value is None and element.tag == "meter":
                yield "<meter> has no value"
            if value is not None and not 0 <= float(value) <= most:
                yield f"<{element.tag}> shows {value} of {most}"
        if element.tag == "select" and "required" in element.attrib and "multiple" not in element.attrib:
            first = element.find("option")
            if first is None or (first.get("value") != "" and "size" not in element.attrib):
                yield "a required <select> does not begin with an empty choice"


def one_of_a_kind(tree: Tree) -> Iterator[str]:
    """A document has a language, a title, one heading of the first order and one main part."""
    if not tree.whole:
        return
    counted = Counter(str(element.tag) for element in tree if "hidden" not in element.attrib)
    yield from (f"{counted[tag]} times <{tag}>" for tag in ("title", "h1", "main") if counted[tag] != 1)
    if not (tree.root.get("lang") or "").strip():
        yield "the document has no language"


RULES: tuple[Rule, ...] = (
    named_once,
    names_exist,
    blocks_stand_among_blocks,
    controls_stand_alone,
    right_company,
    tables_are_even,
    attributes_exist,
    fields_are_named,
    one_of_a_kind,
)
