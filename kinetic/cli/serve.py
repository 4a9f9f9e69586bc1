"""`kinetic serve`: one model over HTTP, in the words of OpenAI, Ollama, Anthropic and llama.cpp."""

from __future__ import annotations

import argparse
import logging
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from kinetic.cli.asking import set_template, template_source
from kinetic.cli.options import (
    add_model,
    add_runtime,
    add_sampling,
    load_options,
    sampling_overrides,
    take_model,
)
from kinetic.cli.parser import CommandParser, name, real, whole
from kinetic.cli.receipts import add_sign_key, sign_key
from kinetic.cli.terminal import LoadBar, use_utf8
from kinetic.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from kinetic.api import Model
    from kinetic.server.serve import Server
    from kinetic.server.service import ServerOptions, Service

OLLAMA_PORT, PORT = 11434, 8080


def build_parser() -> CommandParser:
    """The options of `kinetic serve`."""
    parser = CommandParser(
        "serve",
        "kinetic serve [options] <model>",
        "serves a model by the APIs of OpenAI, Anthropic, Ollama, llama-server.",
        "The server listens on this computer alone unless --host says otherwise; give it "
        "--api-key then. Ctrl-C stops it once running answers are done; a second one at once.",
    )
    add_model(parser)
    group, option = "server options", parser.option
    option(
        group,
        "--host",
        metavar="ADDR",
        default="127.0.0.1",
        type=name("an address"),
        help="address to listen on [default: 127.0.0.1]",
    )
    option(
        group,
        "--port",
        metavar="PORT",
        type=whole(0, 65535),
        help="port; 0 takes a free one [default: 8080, or 11434 with --ollama]",
    )
    option(group, "--ollama", help="listen on Ollama's port, so that its apps work unchanged")
    option(
        group,
        "--alias",
        metavar="NAME",
        type=name("a model"),
        help="the model's name in the API [default: the file's name]",
    )
    option(
        group,
        "--api-key",
        metavar="KEY",
        type=name("a key"),
        repeat=True,
        help="require this key on every route but /health; repeatable, and users with "
        "different keys share no prompt cache",
    )
    option(
        group,
        "--parallel",
        metavar="N",
        type=whole(1, 64),
        help="answers that run at once, sharing passes over the weights [default: up to 4, as "
        "memory allows]",
    )
    option(
        group,
        "--queue",
        metavar="N",
        type=whole(0, 100_000),
        default=64,
        help="requests that may wait; more are answered 503 [default: 64]",
    )
    option(
        group,
        "--drain",
        metavar="S",
        type=real(0, 3600),
        default=30.0,
        help="seconds that running answers get when the server is stopped [default: 30]",
    )
    option(
        group,
        "--allow-origin",
        metavar="ORIGIN",
        repeat=True,
        type=name("an origin"),
        help="let web pages of this origin use the server; repeatable",
    )
    option(
        group,
        "--allow-host",
        metavar="HOST",
        repeat=True,
        type=name("a host"),
        help="answer under this host name too; repeatable",
    )
    option(
        group,
        "--max-body",
        metavar="MIB",
        type=whole(1, 4096),
        default=64,
        help="largest request body [default: 64]",
    )
    option(
        group,
        "--reasoning",
        choices=("on", "off", "auto"),
        default="auto",
        help="whether requests that do not say think first; auto leaves it to the chat "
        "template [default: auto]",
    )
    option(
        group,
        "--chat-template-file",
        metavar="FILE",
        type=name("a file"),
        help="a Jinja chat template to use instead of the model's own",
    )
    option(group, "--no-webui", help="no chat page at /")
    add_sign_key(parser, group)
    add_sampling(parser)
    add_runtime(parser)
    return parser


def run(options: argparse.Namespace) -> int:
    """Serve until told to stop. Raises: any KineticError of loading or listening."""
    use_utf8()
    path, _ = take_model(options, "serve", alone=True)
    _need_packages()
    from kinetic.server.serve import Server, listen
    from kinetic.server.service import Service

    logging.basicConfig(format="kinetic: %(message)s", level=logging.WARNING, stream=sys.stderr)
    template = template_source(options)
    wanted = _server_options(options)
    sockets = listen(wanted.host, wanted.port)  # before a load that may take long
    try:
        model = _load(path, options)
        try:
            if template is not None:
                set_template(model, template, options.chat_template_file)
            wanted = replace(wanted, parallel=model.scheduler.parallel)
            service = Service(model, path, wanted, sampling_overrides(options))
            server = Server(service, sockets)
            _serve(server, service)
        finally:
            model.close()
    finally:
        for sock in sockets:
            sock.close()
    return 0


def _need_packages() -> None:
    from importlib.util import find_spec

    if not all(map(find_spec, ("starlette", "hypercorn", "msgspec"))):
        raise UsageError(
            "the server's packages are not installed; pip install 'kinetic-engine[server]'."
        )


def _server_options(options: argparse.Namespace) -> ServerOptions:
    from kinetic.server.service import ServerOptions

    keys = [key.strip() for given in options.api_key or () for key in given.split(",")]
    default_port = OLLAMA_PORT if options.ollama else PORT
    return ServerOptions(
        host=options.host,
        port=default_port if options.port is None else options.port,
        alias=options.alias,
        api_keys=tuple(key for key in keys if key),
        allow_origins=tuple(options.allow_origin or ()),
        allow_hosts=tuple(options.allow_host or ()),
        webui=not options.no_webui,
        drain=options.drain,
        max_body=options.max_body << 20,
        think={"on": True, "off": False}.get(options.reasoning),
        sign_key=sign_key(options),
    )


def _load(path: Path, options: argparse.Namespace) -> Model:
    from kinetic.api import Model

    bar = LoadBar()
    try:
        return Model.load(
            path,
            ctx_size=options.ctx_size,
            parallel=options.parallel,
            queue_limit=options.queue,
            progress=bar.progress,
            **load_options(options),
        )
    finally:
        bar.clear()


def _serve(server: Server, service: Service) -> None:
    import asyncio

    from kinetic.server.security import is_loopback

    host = service.options.host
    shown = f"[{host}]" if ":" in host else host

    def ready() -> None:
        if not is_loopback(host):
            key = "" if service.options.api_keys else "; give it --api-key"
            print(
                f"kinetic: warning: at {host} other computers can use this server{key}",
                file=sys.stderr,
            )
        where = f"http://{shown}:{server.port}/v1"
        print(f"Serving {service.name} on {service.model.device_name} at {where}", flush=True)

    asyncio.run(server.run(ready))
