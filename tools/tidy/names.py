"""Function names: who declares which, and which name too many unrelated functions share (docs/STYLE.md, Names).

An owner is a class, a namespace, or the anonymous namespace of one file. Overloads and overrides belong to the function
that they overload or override, and count once.
"""
import re

MAX_OWNERS = 4
# What the language, its library or a C ABI names, and accessors whose one word is the field's own.
EXEMPT = frozenset("""begin end size empty data reset get swap main value has_value clear insert erase find contains push_back
                      LLVMFuzzerTestOneInput""".split())
KEYWORDS = frozenset("""if for while switch return sizeof alignof decltype noexcept static_assert catch throw new delete operator
                        requires alignas typeid co_await explicit defined assert""".split())
NAME = re.compile(r"((?:[A-Za-z_]\w*(?:<[^<>()]*>)?::)*)(~?[A-Za-z_]\w*)\s*$")


def declared_name(head):
    """(qualifier, name, whether it overrides) of the function that a declaration's text declares, or None."""
    head = re.sub(r"^\s*(?:(?:public|private|protected)\s*:\s*)+", "", head.strip())
    head = re.sub(r"^template\s*<(?:[^<>]|<[^<>]*>)*>\s*(?:requires [^{;]*?(?=\b(?:auto|void|bool|Result)\b))?", "", head)
    head = re.sub(r"\[\[[^\]]*\]\]", "", head)
    before, bracket, after = head.partition("(")
    if not bracket or "=" in before:
        return None
    match = NAME.search(before)
    if not match:
        return None
    kind = before[:match.start()].strip()
    if not kind or kind[-1] in "<,(" or match[2] in KEYWORDS or match[2].startswith("~") or re.search(r"\b(return|using|typedef|operator|friend|else|case|goto|new|enum)\b", kind):
        return None
    return match[1].removesuffix("::"), match[2], bool(re.search(r"\boverride\b", after))


def declared_functions(lines, path):
    """(owner, name, line, whether it overrides) of each function that the blanked source declares outside of bodies."""
    found, stack, head, first = [], [], "", 0

    def declare(text, number):
        named = declared_name(text)
        if not named or any(kind == "body" for kind, _ in stack):
            return
        scope = "::".join(name for _, name in stack if name)
        owner = "::".join(filter(None, [scope, named[0]]))
        found.append((owner + f"@{path}" if "(anonymous)" in owner else owner, named[1], number, named[2]))
    parentheses = 0
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith("#"):
            continue
        for character in line:
            parentheses += {"(": 1, ")": -1}.get(character, 0)
            if parentheses > 0:
                head += character
                continue
            if character == "{":
                text = head.strip()
                scope = re.search(r"\b(namespace|class|struct|union|enum)\b(?:\s+\[\[[^\]]*\]\])?\s*([\w:]*)[^()]*$", text)
                if scope and "(" not in text.split("{")[-1].replace("alignas(", ""):
                    kind = "body" if scope[1] == "enum" else scope[1]
                    stack.append((kind, scope[2] or ("(anonymous)" if scope[1] == "namespace" else "")))
                else:
                    declare(text, first or number)
                    stack.append(("body", ""))
                head, first = "", 0
            elif character == "}":
                if stack:
                    stack.pop()
                head, first = "", 0
            elif character == ";":
                declare(head, first or number)
                head, first = "", 0
            else:
                if not head.strip() and not character.isspace():
                    first = number
                head += character
        head += "\n"
    return found


def owners_by_name(sources):
    """{name: {owner: (path, line)}} of (path, blanked lines) pairs; an override belongs to its base."""
    found = [(path, *function) for path, lines in sources for function in declared_functions(lines, path)]
    overrides = {(owner, name) for _, owner, name, _, overriding in found if overriding}
    owners = {}
    for path, owner, name, line, _ in found:
        if name not in EXEMPT and (owner, name) not in overrides:
            owners.setdefault(name, {}).setdefault(owner, (path, line))
    return owners


def shared_names(sources):
    """(path, line, name, owners) at each place of a name that more than MAX_OWNERS unrelated functions have."""
    for name, owners in sorted(owners_by_name(sources).items()):
        if len(owners) > MAX_OWNERS:
            for path, line in sorted(owners.values()):
                yield path, line, name, sorted(owners)
