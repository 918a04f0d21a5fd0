"""Notifiers against servers on real sockets: what arrives, what is tried again, and what nobody is told."""

from __future__ import annotations

import email
import json
import types
from collections.abc import Iterator
from email.policy import default
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from kbq_assets.core.config.settings import parse_settings
from kbq_assets.core.errors import ConfigurationError, KbqError, Unavailable
from kbq_assets.extras.notices.model import NEW, RESOLVED, Item, Notice
from kbq_assets.extras.notices.port import Notifier
from kbq_assets.extras.notices.senders import open_notifiers, plugin
from kbq_assets.extras.notices.senders.http import ATTEMPTS
from kbq_assets.extras.notices.senders.slack import MAX_CHARACTERS
from kbq_assets.extras.notices.senders.webhook import SIGNATURE, signature
from kbq_assets_tests.adapters.registry.test_registry import Authority, server_tls
from kbq_assets_tests.fakes.clock import FakeClock
from kbq_assets_tests.fakes.hook_server import HookServer, hook_server
from kbq_assets_tests.fakes.smtp_server import SmtpServer, smtp_server

SECRET = "s3cr3t-t0k3n"
NOW = 1_700_000_000_000
ITEM = Item("shop.orders", "load_failed: <!channel> & co", NOW - 60_000, ("kbq resume --table shop.orders",))
NOTICE = Notice("no_table_is_parked", NEW, "error", "shop.orders is not loaded", (ITEM,), 1, NOW)


@pytest.fixture
def server() -> Iterator[HookServer]:
    with hook_server() as served:
        yield served


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


def opened(notify: str, clock: FakeClock | None = None, **environ: str) -> Notifier:
    """The one notifier of a configuration."""
    settings = parse_settings({"KBQ_NOTIFY": notify, **environ})
    [notifier] = open_notifiers(settings.notify, clock or FakeClock())
    for shown in (repr(settings), repr(notifier), notifier.name, notifier.shown):
        assert SECRET not in shown
    return notifier


def error_of(notifier: Notifier, kind: type[KbqError], notice: Notice = NOTICE) -> str:
    """What a notifier says when it fails: no secret."""
    with pytest.raises(kind) as raised:
        notifier.send(notice)
    assert SECRET not in str(raised.value)
    assert raised.value.next_step
    return str(raised.value)


# Slack


@pytest.fixture
def slack(server: HookServer, monkeypatch: pytest.MonkeyPatch) -> Notifier:
    monkeypatch.setenv("SLACK_URL", f"{server.url}/services/{SECRET}")
    return opened("slack:env:SLACK_URL")


def _text(server: HookServer) -> str:
    text = json.loads(server.posted[-1].body)["text"]
    assert isinstance(text, str)
    return text


def test_slack_gets_what_happened_since_when_and_the_command(slack: Notifier, server: HookServer) -> None:
    slack.send(NOTICE)
    assert server.posted[-1].path == f"/services/{SECRET}"
    text = _text(server)
    assert text.startswith(":red_circle: *shop.orders is not loaded*\n• shop.orders: load_failed")
    assert "(since 2023-11-14T22:12:20Z)" in text
    assert "next: `kbq resume --table shop.orders`" in text


def test_an_error_of_a_table_mentions_nobody_in_slack(slack: Notifier, server: HookServer) -> None:
    slack.send(NOTICE)
    assert "&lt;!channel&gt; &amp; co" in _text(server)


def test_a_long_notice_is_cut_and_says_where_the_rest_is(slack: Notifier, server: HookServer) -> None:
    items = (Item("t" * 300, "x" * 600, NOW),) * 20
    slack.send(Notice("k", NEW, "warn", "Much", items, 400, NOW))
    text = _text(server)
    assert len(text) < MAX_CHARACTERS + 100
    assert text.endswith("`kbq status` shows all")


def test_what_is_not_shown_is_counted(slack: Notifier, server: HookServer) -> None:
    slack.send(Notice("k", NEW, "warn", "Much", (ITEM,), 400, NOW))
    assert "and 399 more" in _text(server)


def test_what_has_ended_needs_no_command(slack: Notifier, server: HookServer) -> None:
    slack.send(Notice("k", RESOLVED, "info", "Resolved: x", (ITEM,), 1, NOW))
    assert "next:" not in _text(server)


def test_a_variable_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLACK_URL", raising=False)
    assert "SLACK_URL is not set" in error_of(opened("slack:env:SLACK_URL"), ConfigurationError)


def test_a_reference_may_be_a_file(server: HookServer, tmp_path: Path) -> None:
    (tmp_path / "url").write_text(f"{server.url}/{SECRET}\n")
    opened(f"slack:file:{tmp_path / 'url'}").send(NOTICE)
    assert len(server.posted) == 1


@pytest.mark.parametrize("url", [SECRET, f"ftp://{SECRET}", f"https://x/{SECRET} y", f"http:///{SECRET}"])
def test_what_is_no_address_is_refused_without_showing_it(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLACK_URL", url)
    assert "not an http or https URL" in error_of(opened("slack:env:SLACK_URL"), ConfigurationError)


# Trying again


@pytest.mark.parametrize(
    ("answer", "paused"),
    [
        ((500, {}), 1.0),
        ((503, {"Retry-After": "7"}), 7.0),
        ((429, {"Retry-After": "2"}), 2.0),
        ((429, {"Retry-After": "Tue, 14 Nov 2023 22:13:25 GMT"}), 5.0),
        ((429, {"Retry-After": "soon"}), 1.0),
        ((0, {}), 1.0),
    ],
)
def test_what_may_pass_is_tried_again_after_the_pause_that_is_asked_for(
    server: HookServer, answer: tuple[int, dict[str, str]], paused: float
) -> None:
    clock = FakeClock()
    server.answers = [answer, (200, {})]
    opened(f"webhook:{server.url}/{SECRET}", clock).send(NOTICE)
    assert (len(server.posted), clock.seconds) == (2, paused)


def test_tries_are_bounded(server: HookServer) -> None:
    server.answers = [(502, {})]
    assert "HTTP 502" in error_of(opened(f"webhook:{server.url}/{SECRET}"), Unavailable)
    assert len(server.posted) == ATTEMPTS


def test_a_long_pause_is_left_to_the_next_look(server: HookServer) -> None:
    clock = FakeClock()
    server.answers = [(429, {"Retry-After": "3600"})]
    error_of(opened(f"webhook:{server.url}/{SECRET}", clock), Unavailable)
    assert (len(server.posted), clock.seconds) == (1, 0.0)


@pytest.mark.parametrize("status", [301, 302, 307, 400, 403, 404, 410])
def test_what_does_not_pass_is_not_tried_again_nor_followed(server: HookServer, status: int) -> None:
    server.answers = [(status, {"Location": f"{server.url}/elsewhere"})]
    assert f"HTTP {status}" in error_of(opened(f"webhook:{server.url}/{SECRET}"), ConfigurationError)
    assert len(server.posted) == 1


def test_nobody_at_the_address_may_pass() -> None:
    error_of(opened(f"webhook:http://127.0.0.1:1/{SECRET}"), Unavailable)


# Webhooks


def test_a_webhook_gets_a_document(server: HookServer) -> None:
    opened(f"webhook:{server.url}/{SECRET}").send(NOTICE)
    [posted] = server.posted
    assert SIGNATURE.lower() not in posted.headers
    assert json.loads(posted.body) == {
        "version": 1,
        "kind": "no_table_is_parked",
        "phase": "new",
        "severity": "error",
        "title": "shop.orders is not loaded",
        "count": 1,
        "time": "2023-11-14T22:13:20Z",
        "items": [
            {
                "subject": "shop.orders",
                "text": ITEM.text,
                "since": "2023-11-14T22:12:20Z",
                "commands": ["kbq resume --table shop.orders"],
                "link": None,
            }
        ],
    }


def test_a_document_is_signed_with_the_key_of_the_settings(
    server: HookServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK_KEY", SECRET)
    opened(f"webhook:{server.url}/x", KBQ_WEBHOOK_SECRET="env:HOOK_KEY").send(NOTICE)
    [posted] = server.posted
    assert posted.headers[SIGNATURE.lower()] == signature(SECRET, posted.body)
    assert posted.headers[SIGNATURE.lower()] != signature("another", posted.body)


# E-mail


def _mailer(server: SmtpServer, security: str, **environ: str) -> Notifier:
    return opened(
        "email:ops@example.com",
        None,
        KBQ_SMTP_HOST="127.0.0.1",
        KBQ_SMTP_PORT=str(server.port),
        KBQ_SMTP_SECURITY=security,
        KBQ_SMTP_FROM="kbq@example.com",
        **environ,
    )


@pytest.mark.parametrize(("security", "at_once"), [("starttls", False), ("tls", True)])
def test_a_mail_goes_encrypted_after_a_login(
    authority: Authority, security: str, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAIL_PASSWORD", SECRET)
    with smtp_server(server_tls(authority), tls_at_once=at_once) as server:
        server.users["kbq"] = SECRET
        login = {"KBQ_SMTP_USERNAME": "kbq", "KBQ_SMTP_PASSWORD": "env:MAIL_PASSWORD"}
        _mailer(server, security, KBQ_SMTP_CA_FILE=authority.file, **login).send(NOTICE)
    [mail] = server.mails
    assert (mail.sender, mail.recipients) == ("kbq@example.com", ("ops@example.com",))
    assert (mail.encrypted, mail.user) == (True, "kbq")
    parsed = email.message_from_string(mail.data, policy=default)
    assert parsed["Subject"] == "[KBQ] shop.orders is not loaded"
    assert parsed["Auto-Submitted"] == "auto-generated"
    assert "next: kbq resume --table shop.orders" in parsed.get_content()


def test_a_name_cannot_write_headers() -> None:
    with smtp_server() as server:
        notice = Notice("k", NEW, "error", "x\r\nBcc: all@example.com", (ITEM,), 1, NOW)
        _mailer(server, "none").send(notice)
    [mail] = server.mails
    assert mail.recipients == ("ops@example.com",)
    assert email.message_from_string(mail.data, policy=default)["Bcc"] is None


def test_a_wrong_password_is_told_without_it(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAIL_PASSWORD", SECRET)
    login = {"KBQ_SMTP_USERNAME": "kbq", "KBQ_SMTP_PASSWORD": "env:MAIL_PASSWORD"}
    with smtp_server(server_tls(authority)) as server:
        mailer = _mailer(server, "starttls", KBQ_SMTP_CA_FILE=authority.file, **login)
        assert "code 535" in error_of(mailer, ConfigurationError)
    assert server.mails == []


def test_a_server_that_is_not_trusted_gets_no_mail(authority: Authority) -> None:
    with smtp_server(server_tls(authority)) as server:
        assert "is not trusted" in error_of(_mailer(server, "starttls"), ConfigurationError)
    assert server.mails == []


def test_a_server_without_starttls_gets_nothing_in_clear() -> None:
    with smtp_server() as server:
        assert "STARTTLS" in error_of(_mailer(server, "starttls"), ConfigurationError)
    assert server.mails == []


@pytest.mark.parametrize(
    ("word", "answer", "kind"),
    [
        ("RCPT", "450 greylisted, come back", Unavailable),
        ("RCPT", "550 no such user", ConfigurationError),
        ("MAIL", "452 full", Unavailable),
        ("DATA", "554 spam", ConfigurationError),
        ("EHLO", "421 busy", Unavailable),
    ],
)
def test_codes_of_400_may_pass_those_of_500_do_not(word: str, answer: str, kind: type[KbqError]) -> None:
    with smtp_server() as server:
        server.refusals = {word: answer, "HELO": answer}
        assert answer[:3] in error_of(_mailer(server, "none"), kind)


def test_a_mail_server_that_is_away_may_come_back() -> None:
    error_of(_mailer(SmtpServer(port=1), "none"), Unavailable)


# Other packages


class Pager:
    """Somebody's notifier."""

    pages: list[tuple[str, Notice]]

    def __init__(self, target: str) -> None:
        self.target = target

    def send(self, notice: Notice) -> None:
        if self.target == "broken":
            raise ValueError(SECRET)
        self.pages.append((self.target, notice))


@pytest.fixture
def pager(monkeypatch: pytest.MonkeyPatch) -> type[Pager]:
    """A package with an entry point is installed."""
    Pager.pages = []
    module = types.ModuleType("somebodys_pager")
    module.Pager = Pager  # type: ignore[attr-defined]
    monkeypatch.setitem(__import__("sys").modules, "somebodys_pager", module)
    points = EntryPoints([EntryPoint("pager", "somebodys_pager:Pager", plugin.GROUP)])
    monkeypatch.setattr(plugin, "entry_points", lambda group: points.select(group=group))
    return Pager


def test_another_package_brings_a_notifier(pager: type[Pager], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGER", SECRET)
    opened("pager:env:PAGER").send(NOTICE)
    assert pager.pages == [(SECRET, NOTICE)]


def test_what_another_package_raises_is_told_without_its_words(pager: type[Pager]) -> None:
    assert "ValueError" in error_of(opened("pager:broken"), Unavailable)


def test_a_kind_that_nobody_brings_is_told_with_those_there_are(pager: type[Pager]) -> None:
    message = error_of(opened("pigeon:home"), ConfigurationError)
    assert "slack, email, webhook, pager" in message


# Settings


@pytest.mark.parametrize(
    "notify",
    [
        "slack",
        "slack:",
        f"slack:https://hooks.slack.com/services/{SECRET}",
        f"webhook:{SECRET}",
        f"email:{SECRET}",
        "Slack:env:X",
        "email:a@b.org,email:a@b.org",
        "email:a@b.org",
    ],
)
def test_a_notifier_that_cannot_be_is_refused_without_showing_it(notify: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        parse_settings({"KBQ_NOTIFY": notify})
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "value"), [("KBQ_SMTP_SECURITY", "ssl"), ("KBQ_SMTP_PORT", "0"), ("KBQ_UI_URL", "dagster")]
)
def test_a_setting_that_cannot_be_is_refused(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        parse_settings({name: value})


def test_a_password_does_not_go_in_clear() -> None:
    with pytest.raises(ConfigurationError, match="in clear"):
        parse_settings({"KBQ_SMTP_SECURITY": "none", "KBQ_SMTP_PASSWORD": "env:P"})


def test_another_target_has_another_ledger_and_the_same_target_its_own() -> None:
    first, again, other = (opened(f"webhook:http://h/{n}").name for n in ("a", "a", "b"))
    assert first == again != other
