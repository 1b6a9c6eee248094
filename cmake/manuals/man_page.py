# SPDX-License-Identifier: MIT
"""Writes a manual page in roff."""


def roff(text):
    text = text.replace("\\", r"\e").replace("-", r"\-").replace("~", r"\(ti").replace("^", r"\(ha")
    return "\n".join(r"\&" + line if line[:1] in (".", "'") else line for line in text.split("\n"))


def page(manual, version):
    out = [f'.TH "{roff(manual.name.upper())}" 1 "" "tutti {version}" "tutti"', ".nh", ".ad l", ".SH NAME",
           f"{roff(manual.name)} \\- {roff(manual.title())}", ".SH SYNOPSIS"]
    for usage in manual.usage:
        bold, _, rest = usage.partition(" ")
        out += [".PP", f"\\fB{roff(bold)}\\fR {roff(rest)}"]
    in_options = False
    for i, section in enumerate(manual.sections):
        own = section.title in ("EXIT STATUS", "NOTES")
        if i == 0 or own:
            out.append(f".SH {section.title or 'DESCRIPTION'}")
        elif not in_options:
            out.append(".SH OPTIONS")
            in_options = True
        if i > 0 and not own and section.title.lower() != "options":
            out.append(f'.SS "{roff(section.title)}"')
        for item in section.items:
            if isinstance(item, str):
                out += [".PP", roff(item.strip())]
            elif isinstance(item, list):
                out += [".PP", ".nf", *map(roff, item), ".fi"]
            elif section.title.startswith(manual.name + " ") and item is section.items[0]:
                out += [".PP", roff(item.text)] if item.text else []  # the heading lists its options
            else:
                out += [".TP", f"\\fB{roff(item.head())}\\fR", roff(item.text.strip()) or r"\&"]
    out += [".SH SEE ALSO", "The documents in share/doc/tutti of the installation.", ""]
    return "\n".join(out)
