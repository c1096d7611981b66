"""An SMTP server that stores each message as a JSON file. It ends when its standard input does.

Arguments: the directory for messages, then optionally a certificate, its key, a user and a password:
with them, the server requires STARTTLS and a sign-in. Recipients at `refused.example` do not exist.
"""

import email.policy
import json
import os
import socket
import ssl
import sys

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult


class Handler:
    def __init__(self, directory):
        self.directory = directory
        self.count = 0

    async def handle_RCPT(self, server, session, envelope, address, options):
        if address.endswith("@refused.example"):
            return "550 5.1.1 No such user here"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server, session, envelope):
        message = email.message_from_bytes(envelope.content, policy=email.policy.default)
        parts = {part.get_content_type(): part.get_content() for part in message.walk() if not part.is_multipart()}
        stored = {
            "from": envelope.mail_from,
            "to": envelope.rcpt_tos,
            "headers": {name.lower(): str(value) for name, value in message.items()},
            "text": parts.get("text/plain", "").replace("\r\n", "\n"),
            "html": parts.get("text/html", "").replace("\r\n", "\n"),
            "defects": [str(defect) for part in message.walk() for defect in part.defects],
            "encrypted": session.ssl is not None,
            "user": getattr(session, "auth_data", None) and session.auth_data.login.decode(),
        }
        self.count += 1
        path = os.path.join(self.directory, f"{self.count:04}.json")
        with open(path + ".new", "w") as file:
            json.dump(stored, file)
        os.rename(path + ".new", path)
        return "250 2.0.0 Ok: queued"


def main():
    directory, *secure = sys.argv[1:]
    options = {}
    if secure:
        certificate, key, user, password = secure
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate, key)

        def authenticate(server, session, envelope, mechanism, data):
            known = (data.login, data.password) == (user.encode(), password.encode())
            return AuthResult(success=known, handled=known, auth_data=data)

        options = {
            "tls_context": context,
            "require_starttls": True,
            "auth_required": True,
            "authenticator": authenticate,
        }
    # Port 0 would be the port that the controller connects to as a check; a free one is found first.
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    controller = Controller(Handler(directory), hostname="127.0.0.1", port=port, **options)
    controller.start()
    print(port, flush=True)
    sys.stdin.read()
    controller.stop()


main()
