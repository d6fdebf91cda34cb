"""`dpsql user`: users, their allowances and their passwords."""

from __future__ import annotations

import sys
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpsql.cli.report import refusals

if TYPE_CHECKING:
    from dpsql.policy.model import Policy
    from dpsql.policy.passwords import Verifier
    from dpsql.privacy.accounting import Price

Command = Callable[..., Any]

_MOST_INPUT = 100_000  # bytes read from standard input: more than any password


def _positive(text: str) -> Decimal:
    """An exact positive number."""
    try:
        number = Decimal(text)
    except InvalidOperation:
        number = Decimal(0)
    if not number.is_finite() or number <= 0 or not -50 < number.adjusted() < 50:
        raise click.BadParameter(f"{text!r} is not a positive number")
    return number


def _positive_or_none(text: str) -> Decimal | str:
    """Keeps the word: click takes None for a missing argument."""
    return text if text == "none" else _positive(text)


_policy = click.option("--policy", metavar="FILE", default="dpsql.toml", show_default=True, help="The policy file.")
_password_stdin = click.option(
    "--password-stdin", is_flag=True, help="Read the password from standard input, one line, instead of asking."
)


@click.group()
def user() -> None:
    """Manage users, their allowances and their passwords.

    The commands edit the policy file and keep its comments. Passwords are prompted for, never passed as arguments, and
    only verifiers are stored. A change of an allowance is recorded in the ledger.

    \b
    Example:
      dpsql user add alice --epsilon 1
      dpsql user allowance alice 2
      dpsql user list
    """


@user.command()
@click.argument("name")
@click.option("--epsilon", metavar="X", type=_positive, help="Allowance. Default: the dataset's total.")
@_password_stdin
@_policy
def add(name: str, epsilon: Decimal | None, password_stdin: bool, policy: str) -> None:
    """Add a user to the policy.

    At a terminal the password is prompted for; an empty one means no password, and then the user cannot log in to a
    server. Otherwise there is no password, unless --password-stdin reads one.

    \b
    Example:
      dpsql user add alice --epsilon 1
      dpsql user add bob --password-stdin < password.txt
    """
    from dpsql.policy.edit import add_user, require_new
    from dpsql.policy.load import load

    path = Path(policy)
    with refusals():
        declared = load(path)
        require_new(name, declared.users)
        _require_affordable(declared, epsilon)
        password = _new_password(name, password_stdin, optional=True)
        changed = add_user(path, name, epsilon, password)
        allowance = "no allowance of their own" if epsilon is None else f"allowance {_epsilon(epsilon)}"
        click.echo(f'added user "{name}": {allowance}, {"no password" if password is None else "password set"}')
        _record(changed)
        _mention_spending(changed, name, "they have spent {} before, which still counts")
        _mention_servers()


@user.command("list")
@_policy
def list_(policy: str) -> None:
    """List the users of the policy.

    dpsql budget shows what they have spent.

    \b
    Example:
      dpsql user list
    """
    from dpsql.cli.rows import aligned
    from dpsql.policy.load import load

    with refusals():
        users = load(Path(policy)).users.values()
    rows = [
        (each.name, "none" if each.epsilon is None else _epsilon(each.epsilon), "set" if each.password else "none")
        for each in users
    ]
    if not rows:
        click.echo("the policy has no user", err=True)
        click.echo("hint: Add one with dpsql user add NAME.", err=True)
        return
    for line in aligned(["user", "allowance", "password"], rows, numeric=[False] * 3):
        click.echo(line)


@user.command()
@click.argument("name")
@_policy
def remove(name: str, policy: str) -> None:
    """Remove a user from the policy.

    What the user has spent stays in the ledger, and counts again if the user is added again.

    \b
    Example:
      dpsql user remove alice
    """
    from dpsql.policy.edit import remove_user

    with refusals():
        changed = remove_user(Path(policy), name)
        click.echo(f'removed user "{name}"')
        _record(changed)
        _mention_spending(changed, name, "{} that they have spent stays in the ledger")
        _mention_servers()


@user.command()
@click.argument("name")
@_password_stdin
@_policy
def password(name: str, password_stdin: bool, policy: str) -> None:
    """Set the password of a user.

    Prompts for it twice, or reads it with --password-stdin. The policy file gets a SCRAM-SHA-256 verifier in
    PostgreSQL's format, never the password.

    \b
    Example:
      dpsql user password alice
      dpsql user password alice --password-stdin < password.txt
    """
    from dpsql.policy.edit import require_known, set_password

    path = Path(policy)
    with refusals():
        require_known(path, name)
        verifier = _new_password(name, password_stdin, optional=False)
        assert verifier is not None
        set_password(path, name, verifier)
    click.echo(f'changed the password of user "{name}"')
    _mention_servers()


@user.command()
@click.argument("name")
@click.argument("epsilon", metavar="X|none", type=_positive_or_none)
@_policy
def allowance(name: str, epsilon: Decimal | str, policy: str) -> None:
    """Set what a user may spend of the dataset's total.

    With none, only the dataset's total limits the user. The ledger records the change. With an allowance below what is
    spent, every further query is refused.

    \b
    Example:
      dpsql user allowance alice 2
      dpsql user allowance alice none
    """
    from dpsql.policy.edit import set_allowance, unknown_user
    from dpsql.policy.load import load

    path, wanted = Path(policy), None if isinstance(epsilon, str) else epsilon
    with refusals():
        declared = load(path)
        if name not in declared.users:
            raise unknown_user(name)
        _require_affordable(declared, wanted)
        before = declared.users[name].epsilon
        changed = set_allowance(path, name, wanted)
        click.echo(f'changed the allowance of user "{name}" from {_epsilon(before)} to {_epsilon(wanted)}')
        _record(changed)
        _warn_if_spent(changed, name)


# --- passwords ---


def _new_password(name: str, from_stdin: bool, *, optional: bool) -> Verifier | None:
    """The verifier of a password from standard input or a terminal. The password itself is not kept."""
    from dpsql.errors import BadSetting
    from dpsql.policy.passwords import Verifier, prepare

    if from_stdin:
        return Verifier.of(_one_line(sys.stdin.buffer.read(_MOST_INPUT)))
    if not sys.stdin.isatty():
        if optional:
            return None
        raise click.UsageError("there is no terminal to ask for the password; use --password-stdin")
    entered = click.prompt(
        f"Password for {name}" + (" (none: press Enter)" if optional else ""),
        default="" if optional else None,
        show_default=False,
        hide_input=True,
        err=True,
    )
    if optional and not entered:
        return None
    prepare(entered)  # an unusable password need not be typed twice
    if click.prompt("Repeat the password", hide_input=True, default="", show_default=False, err=True) != entered:
        raise BadSetting("the two passwords differ", hint="Nothing was changed. Try again.")
    return Verifier.of(entered)


def _one_line(data: bytes) -> str:
    from dpsql.errors import BadSetting

    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise BadSetting("the password is not UTF-8 text", hint="Encode it as UTF-8.") from None
    line = text.removesuffix("\n").removesuffix("\r")
    if "\n" in line:
        raise BadSetting("standard input holds more than one line", hint="Write the password on one line.")
    return line


# --- allowances ---


def _epsilon(value: Fraction | Decimal | None) -> str:
    return "none" if value is None else f"epsilon {float(value):.6g}"


def _require_affordable(policy: Policy, epsilon: Decimal | None) -> None:
    """An allowance must not exceed the total, and must be at least the ledger's grain."""
    from dpsql.errors import BadSetting
    from dpsql.privacy.accounting import Accountant

    if epsilon is None:
        return
    if Fraction(epsilon) > policy.privacy.epsilon:
        raise BadSetting(
            f"an allowance of {_epsilon(epsilon)} is more than the dataset's total of"
            f" {_epsilon(policy.privacy.epsilon)}",
            hint="Choose a smaller one, or raise epsilon in [privacy] first.",
        )
    Accountant(policy.privacy).allowance(Fraction(epsilon))


def _record(policy: Policy) -> None:
    """Open the ledger, which records the new limits. One that does not exist yet records them when it is created."""
    from dpsql.errors import Error
    from dpsql.ledger.opening import ledger_exists, record_limits
    from dpsql.privacy.accounting import Accountant

    try:
        if ledger_exists(policy):
            record_limits(policy, Accountant(policy.privacy))
    except Error as error:
        error.detail = "The policy was changed; the ledger records it when it is next opened."
        raise


def _mention_servers() -> None:
    click.echo("a running server still uses the old policy: send it SIGHUP (kill -HUP PID) to apply the change")


def _spent(policy: Policy, name: str) -> Price:
    from dpsql.ledger.opening import ledger_exists, read_books
    from dpsql.privacy.accounting import Price

    if not ledger_exists(policy):
        return Price()
    with read_books(policy) as books:
        return Price() if books is None else books.spent().get(name, Price())


def _mention_spending(policy: Policy, name: str, sentence: str) -> None:
    from dpsql.cli.amounts import amount_text
    from dpsql.privacy.accounting import Accountant, Price

    spent = _spent(policy, name)
    if spent != Price():
        click.echo(sentence.format(amount_text(spent, Accountant(policy.privacy))))


def _warn_if_spent(policy: Policy, name: str) -> None:
    from dpsql.privacy.accounting import Accountant

    if not _spent(policy, name).fits_in(Accountant(policy.privacy).allowance(policy.users[name].epsilon)):
        _mention_spending(policy, name, "they have spent {} already: every further query is refused")
