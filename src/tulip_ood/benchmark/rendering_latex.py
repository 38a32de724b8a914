"""A table for a paper: LaTeX with booktabs."""

from tulip_ood.benchmark.table_model import Cell, Table

__all__ = ["as_latex", "escaped"]

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "±": r"$\pm$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "→": r"$\to$",
    "×": r"$\times$",
    "−": r"$-$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "†": r"$^\dagger$",
    "‡": r"$^\ddagger$",
    "⁻": r"$^{-}$",
    "²": r"$^{2}$",
    "³": r"$^{3}$",
    "–": "--",
    "—": "---",
    "’": "'",
    "“": "``",
    "”": "''",
    "…": r"\dots{}",
    "\N{NO-BREAK SPACE}": "~",
}


def escaped(text: str) -> str:
    r"""Plain text as LaTeX shows it unchanged.

    Example:
        >>> print(escaped("50 % of a_set & {more}"))
        50 \% of a\_set \& \{more\}
    """
    text = text.replace("⁻³", "\0")
    return "".join(_SPECIAL.get(each, each) for each in text).replace("\0", r"$^{-3}$")


def as_latex(table: Table) -> str:
    r"""A floating table as wide as the page; it needs the packages booktabs and graphicx.

    Example:
        >>> from tulip_ood.benchmark.table_model import Column, Row
        >>> rows = (Row("ash-b", (Cell("90.73 ± 0.43"),)),)
        >>> text = as_latex(Table("CIFAR-10", (Column("far", "AUROC ↑"),), rows, ()))
        >>> r"\texttt{ash-b} & 90.73 $\pm$ 0.43 \\" in text
        True
    """
    out = [
        r"% \usepackage{booktabs,graphicx}",
        r"\begin{table*}[t]",
        r"\centering",
        rf"\caption{{{escaped(table.caption)}}}",
        r"\resizebox{\textwidth}{!}{%",
        rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
        r"\toprule",
        *_heads(table),
        r"\midrule",
    ]
    for row in table.rows:
        cells = [rf"\texttt{{{escaped(row.name)}}}", *map(_cell, row.cells)]
        out.append(" & ".join(cells) + r" \\")
    out += [r"\bottomrule", r"\end{tabular}}"]
    if table.notes:
        out += [r"\par\smallskip", r"\begin{minipage}{\textwidth}\footnotesize"]
        out += [rf"{escaped(note)}\par" for note in table.notes]
        out.append(r"\end{minipage}")
    return "\n".join([*out, r"\end{table*}", ""])


def _heads(table: Table) -> list[str]:
    """Groups with a rule below each, then titles."""
    titles = " & ".join(["Method", *(escaped(column.title) for column in table.columns)]) + r" \\"
    if not any(column.group for column in table.columns):
        return [titles]
    over, rules, place = [""], [], 2
    for group, count in table.spans():
        over.append(rf"\multicolumn{{{count}}}{{c}}{{{escaped(group)}}}")
        if group:
            rules.append(rf"\cmidrule(lr){{{place}-{place + count - 1}}}")
        place += count
    return [" & ".join(over) + r" \\", " ".join(rules), titles]


def _cell(cell: Cell) -> str:
    text = escaped(cell.text)
    shown = rf"\textbf{{{text}}}" if cell.bold else text
    return shown + _raised(cell.mark)


def _raised(mark: str) -> str:
    if not mark:
        return ""
    return escaped(mark) if mark in "†‡" else rf"\textsuperscript{{{escaped(mark)}}}"
