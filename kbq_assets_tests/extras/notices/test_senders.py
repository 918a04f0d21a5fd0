"""Notifiers against servers on real sockets: the messages that arrive, and errors without secrets."""

from __future__ import annotations

import email
import json
from collections.abc import Iterator
from email.policy import default
from pathlib import Path

import pytest

from kbq_assets.core.config.settings import parse_settings
from kbq_assets.core.errors import ConfigurationError, KbqError, Unavailable
from kbq_assets.extras.notices.model import Condition, Message, Notifier
from kbq_assets.extras.notices.senders import SIGNATURE, open_notifiers, signature
from kbq_assets_tests.adapters.registry.test_registry import Authority, server_tls
from kbq_assets_tests.fakes.clock import FakeClock
from kbq_assets_tests.fakes.hook_server import HookServer, hook_server
from kbq_assets_tests.fakes.smtp_server import SmtpServer, smtp_server
from kbq_assets_tests.fixtures.variables import Variables

#: Apprise asks for a module that Python 3.13 no longer has.
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")

SECRET = "s3cr3tt0k3ns3cr3tt0k3n12"
NOW = 1_700_000_000_000
ITEM = Condition(
    "no_table_is_parked",
    "shop.orders",
    "load_failed: <!channel> & co",
    commands=("kbq resume --table shop.orders",),
)
MESSAGE = Message((ITEM,), NOW)


@pytest.fixture
def server() -> Iterator[HookServer]:
    with hook_server() as served:
        yield served


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(autouse=True)
def _no_throttle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Apprise waits 5.5 s between two requests to a service."""
    from apprise.plugins.base import NotifyBase
    from apprise.plugins.slack import NotifySlack

    for kind in (NotifyBase, NotifySlack):
        monkeypatch.setattr(kind, "request_rate_per_sec", 0)


def opened(notify: str, **environ: str) -> Notifier:
    """The one notifier of a configuration."""
    settings = parse_settings({"KBQ_NOTIFY": notify, **environ})
    [notifier] = open_notifiers(settings.extras.notify, FakeClock())
    for shown in (repr(settings), repr(notifier), notifier.name, notifier.shown):
        assert SECRET not in shown
    return notifier


def error_of(notifier: Notifier, kind: type[KbqError], caplog: pytest.LogCaptureFixture) -> str:
    """The error of a notifier that fails: neither it nor the log shows a secret."""
    with caplog.at_level("DEBUG"), pytest.raises(kind) as raised:
        notifier.send(MESSAGE)
    assert SECRET not in str(raised.value) + caplog.text
    assert raised.value.next_step
    return str(raised.value)


# Slack, and what else Apprise knows


@pytest.fixture
def slack(server: HookServer, monkeypatch: pytest.MonkeyPatch, variables: Variables) -> Notifier:
    """A channel whose address leads to the server."""
    from apprise.plugins.slack import NotifySlack

    monkeypatch.setattr(NotifySlack, "webhook_url", f"{server.url}/services")
    variables["SLACK_URL"] = f"https://hooks.slack.com/services/T1JJ3T3L2/A1BRTD4JD/{SECRET}"
    return opened("slack:env:SLACK_URL")


def test_slack_gets_the_message_without_markup_of_its_own(slack: Notifier, server: HookServer) -> None:
    slack.send(MESSAGE)
    [posted] = server.posted
    assert posted.path == f"/services/T1JJ3T3L2/A1BRTD4JD/{SECRET}"
    [attachment] = json.loads(posted.body)["attachments"]
    assert attachment["title"] == ITEM.title
    assert "load_failed: &lt;!channel&gt; &amp; co" in attachment["text"]
    assert "next: kbq resume --table shop.orders" in attachment["text"]


@pytest.mark.parametrize("status", [404, 500, 0])
def test_a_service_that_refuses_is_an_error(
    slack: Notifier, server: HookServer, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    server.answers = [(status, {})]
    assert "slack:env:SLACK_URL does not accept" in error_of(slack, Unavailable, caplog)
    assert len(server.posted) == 3


def test_any_service_of_apprise_is_named_by_a_reference(server: HookServer, tmp_path: Path) -> None:
    (tmp_path / "url").write_text(server.url.replace("http:", "json:") + f"/{SECRET}\n")
    opened(f"apprise:file:{tmp_path / 'url'}").send(MESSAGE)
    [posted] = server.posted
    assert json.loads(posted.body)["message"] == MESSAGE.text


@pytest.mark.parametrize("kind", ["slack", "apprise"])
@pytest.mark.parametrize("url", [SECRET, f"ftp://{SECRET}", f"https://x/{SECRET}", f"slack://{SECRET}"])
def test_an_unknown_address_is_refused_without_showing_it(
    kind: str, url: str, variables: Variables, caplog: pytest.LogCaptureFixture
) -> None:
    variables["URL"] = url
    assert "does not recognize" in error_of(opened(f"{kind}:env:URL"), ConfigurationError, caplog)


def test_a_missing_variable_is_named(variables: Variables, caplog: pytest.LogCaptureFixture) -> None:
    variables.pop("SLACK_URL", None)
    assert "SLACK_URL is not set" in error_of(opened("slack:env:SLACK_URL"), ConfigurationError, caplog)


# Webhooks


def test_a_webhook_gets_a_document(server: HookServer) -> None:
    opened(f"webhook:{server.url}/{SECRET}").send(MESSAGE)
    [posted] = server.posted
    assert SIGNATURE.lower() not in posted.headers
    document = json.loads(posted.body)
    [item] = document.pop("items")
    assert document == {
        "version": 2,
        "title": "error: no_table_is_parked: shop.orders",
        "severity": "error",
        "time": "2023-11-14T22:13:20Z",
    }
    assert (item["phase"], item["kind"], item["subject"]) == ("new", ITEM.kind, ITEM.subject)
    assert (item["text"], item["commands"]) == (ITEM.text, list(ITEM.commands))


def test_a_document_is_signed_with_the_key_of_the_settings(server: HookServer, variables: Variables) -> None:
    variables["HOOK_KEY"] = SECRET
    opened(f"webhook:{server.url}/x", KBQ_WEBHOOK_SECRET="env:HOOK_KEY").send(MESSAGE)
    [posted] = server.posted
    assert posted.headers[SIGNATURE.lower()] == signature(SECRET, posted.body)
    assert posted.headers[SIGNATURE.lower()] != signature("another", posted.body)


def test_a_webhook_that_refuses_is_an_error(server: HookServer, caplog: pytest.LogCaptureFixture) -> None:
    server.answers = [(404, {})]
    assert "HTTP 404" in error_of(opened(f"webhook:{server.url}/{SECRET}"), ConfigurationError, caplog)


# E-mail


def _mailer(server: SmtpServer, variables: Variables, mode: str, login: str = "") -> Notifier:
    """A mail server behind Apprise, as docs/notices.md shows it."""
    scheme = "mailto" if mode == "insecure" else "mailtos"
    options = f"from=kbq@example.com&to=ops@example.com&mode={mode}&+Auto-Submitted=auto-generated"
    variables["MAIL_URL"] = f"{scheme}://{login}127.0.0.1:{server.port}?{options}"
    return opened("apprise:env:MAIL_URL")


LOGIN = f"kbq:{SECRET}@"


@pytest.mark.parametrize(("mode", "at_once"), [("starttls", False), ("ssl", True)])
def test_a_mail_goes_encrypted_after_a_login(
    authority: Authority, mode: str, at_once: bool, variables: Variables
) -> None:
    variables["SSL_CERT_FILE"] = authority.file
    with smtp_server(server_tls(authority), tls_at_once=at_once) as server:
        server.users["kbq"] = SECRET
        _mailer(server, variables, mode, LOGIN).send(MESSAGE)
    [mail] = server.mails
    assert (mail.sender, mail.recipients) == ("kbq@example.com", ("ops@example.com",))
    assert (mail.encrypted, mail.user) == (True, "kbq")
    parsed = email.message_from_string(mail.data, policy=default)
    assert parsed["Subject"] == ITEM.title
    assert parsed["Auto-Submitted"] == "auto-generated"
    assert "next: kbq resume --table shop.orders" in parsed.get_content()


def test_a_name_cannot_write_headers(variables: Variables) -> None:
    item = Condition("k", "x\r\nBcc: all@example.com")
    with smtp_server() as server:
        _mailer(server, variables, "insecure").send(Message((item,), NOW))
    [mail] = server.mails
    assert mail.recipients == ("ops@example.com",)
    assert email.message_from_string(mail.data, policy=default)["Bcc"] is None


def test_a_wrong_password_is_an_error_that_does_not_show_it(
    authority: Authority,
    variables: Variables,
    caplog: pytest.LogCaptureFixture,
) -> None:
    variables["SSL_CERT_FILE"] = authority.file
    with smtp_server(server_tls(authority)) as server:
        error_of(_mailer(server, variables, "starttls", LOGIN), Unavailable, caplog)
    assert server.mails == []


@pytest.mark.parametrize("has_tls", [True, False])
def test_an_untrusted_server_and_one_without_starttls_get_nothing(
    authority: Authority, has_tls: bool, variables: Variables, caplog: pytest.LogCaptureFixture
) -> None:
    with smtp_server(server_tls(authority) if has_tls else None) as server:
        error_of(_mailer(server, variables, "starttls", LOGIN), Unavailable, caplog)
    assert server.mails == []


@pytest.mark.parametrize("answer", ["450 greylisted, come back", "550 no such user"])
def test_a_refused_recipient_is_an_error(
    answer: str, variables: Variables, caplog: pytest.LogCaptureFixture
) -> None:
    with smtp_server() as server:
        server.refusals = {"RCPT": answer}
        assert "apprise:env:MAIL_URL" in error_of(_mailer(server, variables, "insecure"), Unavailable, caplog)


# Settings


@pytest.mark.parametrize(
    "notify",
    [
        "slack",
        "slack:",
        f"slack:https://hooks.slack.com/services/{SECRET}",
        f"apprise:discord://{SECRET}",
        f"webhook:{SECRET}",
        "Slack:env:X",
        "pager:env:X",
        "slack:env:X,slack:env:X",
        "email:a@b.org",
    ],
)
def test_an_impossible_notifier_is_refused_without_showing_it(notify: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        parse_settings({"KBQ_NOTIFY": notify})
    assert SECRET not in str(raised.value)


def test_an_impossible_setting_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="KBQ_UI_URL"):
        parse_settings({"KBQ_UI_URL": "dagster"})


def test_a_notifier_of_a_team_says_so_and_has_a_ledger_of_its_own() -> None:
    ours, all_ = opened("web shop=webhook:http://h/a?b=c"), opened("webhook:http://h/a?b=c")
    assert (ours.team, ours.shown, all_.team) == ("web shop", "web shop=webhook:http://h/***", "")
    assert ours.name != all_.name


def test_another_target_has_another_ledger_and_the_same_target_its_own() -> None:
    first, again, other = (opened(f"webhook:http://h/{n}").name for n in ("a", "a", "b"))
    assert first == again != other
