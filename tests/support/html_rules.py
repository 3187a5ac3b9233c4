"""What the standard of HTML knows: its elements, what may stand in what, attributes and their values."""

from __future__ import annotations

import re


def words(text: str) -> frozenset[str]:
    """Return the words of ``text`` as a set."""
    return frozenset(text.split())


BLOCKS = words(
    "address article aside blockquote details dialog div dl fieldset figure footer form h1 h2 h3 h4 "
    "h5 h6 header hr main menu nav ol p pre search section table ul"
)
# Of these only words and what stands among words may be inside.
WORDS_ONLY = words(
    "p h1 h2 h3 h4 h5 h6 pre span b i em strong small code kbd samp var mark abbr cite q s sub sup "
    "time data label button summary legend output progress meter u option"
)
HEADINGS = frozenset(f"h{level}" for level in range(1, 7))
CONTROLS = words("button details embed iframe input label select textarea summary")
LABELABLE = words("button input meter output progress select textarea")
CHILDREN = {
    "ul": {"li", "script", "template"},
    "ol": {"li", "script", "template"},
    "dl": {"dt", "dd", "div", "script", "template"},
    "table": {"caption", "colgroup", "thead", "tbody", "tfoot"},
    "thead": {"tr"},
    "tbody": {"tr"},
    "tfoot": {"tr"},
    "tr": {"td", "th"},
    "select": {"option", "optgroup", "hr"},
}
PARENTS = {
    "li": {"ul", "ol", "menu"},
    "dt": {"dl", "div"},
    "dd": {"dl", "div"},
    "summary": {"details"},
    "legend": {"fieldset"},
    "caption": {"table"},
    "option": {"select", "datalist", "optgroup"},
}
OBSOLETE = words("acronym applet basefont big center dir font frame frameset marquee nobr strike tt")
OBSOLETE_ATTRIBUTES = {
    **{tag: words("align valign bgcolor border width height nowrap") for tag in ("table", "td", "th", "tr")},
    "a": {"name", "charset", "rev"},
    "img": {"align", "border", "hspace", "vspace", "name"},
}  # fmt: skip
EVERYWHERE = words(
    "id class title lang dir hidden tabindex role accesskey autofocus inert slot spellcheck translate "
    "contenteditable popover nonce part itemscope itemprop enterkeyhint inputmode draggable is"
)
OWN = {
    "html": "",
    "meta": "charset name content http-equiv",
    "link": "rel href type sizes media as integrity crossorigin",
    "script": "src type defer async blocking integrity crossorigin nomodule",
    "a": "href target rel download hreflang type ping referrerpolicy",
    "img": "src alt width height loading srcset sizes decoding",
    "form": "action method enctype autocomplete novalidate target name accept-charset rel",
    "input": "type name value checked disabled readonly required placeholder min max step "
    "minlength maxlength pattern size multiple accept list form autocomplete formaction formmethod "
    "formnovalidate alt src",
    "button": "type name value disabled form formaction formmethod formnovalidate formtarget "
    "popovertarget command",
    "select": "name disabled required multiple size form autocomplete",
    "option": "value selected disabled label",
    "optgroup": "label disabled",
    "textarea": "name rows cols disabled readonly required placeholder minlength maxlength form wrap "
    "autocomplete",
    "label": "for",
    "output": "for name form",
    "fieldset": "disabled name form",
    "details": "open name",
    "dialog": "open closedby",
    "th": "scope colspan rowspan headers abbr",
    "td": "colspan rowspan headers",
    "col": "span",
    "colgroup": "span",
    "time": "datetime",
    "data": "value",
    "progress": "value max",
    "meter": "value min max low high optimum",
    "ol": "start reversed type",
    "li": "value",
    "template": "shadowrootmode",
    "base": "href target",
    "body": "",
    "head": "",
}
FREE = re.compile(r"data-[a-z0-9_.-]+$|aria-[a-z]+$|hx-[a-z0-9:-]+$")
INPUT_TYPES = words(
    "text search tel url email password date month week time datetime-local number range color "
    "checkbox radio file submit image reset button hidden"
)
VALUES: dict[tuple[str, str], frozenset[str]] = {
    ("input", "type"): INPUT_TYPES,
    ("button", "type"): frozenset(("submit", "button", "reset")),
    ("form", "method"): frozenset(("get", "post", "dialog")),
    ("th", "scope"): frozenset(("row", "col", "rowgroup", "colgroup")),
}
NUMBERS = words("maxlength minlength rows cols size colspan rowspan span tabindex")
BOOLEANS = words("checked disabled readonly required multiple selected autofocus defer async open novalidate")
MOMENT = re.compile(
    r"\d{4,}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,3})?)?(Z|[+-]\d\d:?\d\d)?)?$|\d\d:\d\d(:\d\d(\.\d+)?)?$|"
    r"P(\d+D)?(T(\d+H)?(\d+M)?(\d+(\.\d{1,3})?S)?)?$"
)
NAMES_OTHERS = (
    "for",
    "form",
    "list",
    "headers",
    "aria-labelledby",
    "aria-describedby",
    "aria-controls",
    "aria-owns",
)
