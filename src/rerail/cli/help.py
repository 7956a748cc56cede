"""`--help` of the commands with many options: the options under headings."""

from __future__ import annotations

import click

SECTIONS = {
    "What to run": "params params_file step error start until skip changes dry_run",
    "The run": "run_id labels resume_ fresh",
    "Artifacts": "verify keep_changes no_restore",
    "Limits": "parallel fail_fast budget_usd max_runtime wait allow_concurrent",
    "Output": "output as_json secrets verbose quiet",
    "Store": "store_url",
}
OTHER = "Other"
_SECTION_OF = {name: section for section, names in SECTIONS.items() for name in names.split()}
_PLACE_OF = {name: place for place, name in enumerate(_SECTION_OF)}


class SectionedCommand(click.Command):
    """Command whose help has its options in the sections of a table."""

    def sections(self, ctx: click.Context) -> dict[str, list[click.Option]]:
        """Return the options of every section that has any, in the order of the table."""
        found: dict[str, list[click.Option]] = {section: [] for section in (*SECTIONS, OTHER)}
        for param in sorted(self.get_params(ctx), key=lambda param: _PLACE_OF.get(param.name or "", len(_PLACE_OF))):
            if isinstance(param, click.Option) and not param.hidden:
                found[_SECTION_OF.get(param.name or "", OTHER)].append(param)
        return {section: options for section, options in found.items() if options}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section, options in self.sections(ctx).items():
            with formatter.section(section):
                formatter.write_dl([_row(option, ctx) for option in options])


def default_of(option: click.Option) -> str:
    """Return the default of an option as its help shows it, or '' if it shows none."""
    if isinstance(option.show_default, str):
        return option.show_default
    return str(option.default) if option.show_default else ""


def _row(option: click.Option, ctx: click.Context) -> tuple[str, str]:
    """Return the names of an option and its help, without the range of its values, which would hide the default."""
    names = (option.get_help_record(ctx) or ("", ""))[0]
    default = default_of(option)
    return names, f"{option.help or ''}  [default: {default}]" if default else option.help or ""
