"""The commands of each system's documentation that run the job."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

from benchmarks.peers import hospitals
from benchmarks.peers.inside.job import FINAL
from benchmarks.peers.mishaps import start_flare
from benchmarks.peers.stage import PORT, Place
from secure_fl.pilot.certificates import make_kits
from secure_fl.settings import Protection
from tests.support.pilot_folders import HUB, PilotFolders

HOST = "localhost"
HERE = f"127.0.0.1:{PORT}"
ROOT = Path(__file__).parents[2]
OWN = {"PYTHONPATH": str(ROOT)}
SOCKET = "site.sock"
SITE = "PEERS_SITE"  # environment variable with the name of the process's site
PROGRAM = "from secure_fl.cli.main import main; main()"
FLARE_SERVER = r"server_train|runner_process"
QUIET = {"FLWR_TELEMETRY_ENABLED": "0"}
WITHOUT_MASKS = "ours-he"  # a control of the eavesdropping
NO_SERVER = "(?!)"  # a simulation has none


@dataclass(frozen=True, slots=True)
class Way:
    """One system in one mode."""

    system: str  # name of its environment; empty for ours
    mode: str  # its name in tables
    protected: bool  # whether the server cannot read a site's update
    run: Callable[[Place], None]
    server: str  # pattern of the command lines of the server's processes
    files: tuple[str, ...] = ()  # that a user writes, under `inside`
    again: Callable[[Place, str], None] = Place.again  # restarts a killed process


def flower(component: str) -> Callable[[Place], None]:
    """Flower's deployment engine: a SuperLink, a SuperNode for each site, and the app.

    The component `sealed` is over our sums: a service of ours for each site, beside its node.
    """

    def run(place: Place) -> None:
        trial = serve_sites(place) if component == "sealed" else None
        home, app = place.out / "home", flower_app(place)
        project = app / "pyproject.toml"
        text = project.read_text().replace("app.plain", f"app.{component}")
        if place.reads:
            text = text.replace(f"app.{component}:server", f"app.lying:{component}")
        project.write_text(text)
        tls_files = make_kits(place.out, ()).coordinator
        ca, certificate, key = tls_files.root, tls_files.certificate, tls_files.key
        home.mkdir()
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "job"\n[superlink.job]\naddress = "{HERE}"\n'
            f'root-certificates = "{ca}"\n'
        )
        settings = {"FLWR_HOME": str(home), **QUIET}
        if trial is not None:
            settings |= wired(place, trial, "{site}")
        tls = ("--ssl-ca-certfile", ca, "--ssl-certfile", certificate, "--ssl-keyfile", key)
        place.start("server", ("flower-superlink", "--port", str(PORT), *map(str, tls)), settings)
        place.until_open(PORT)
        for number, site in enumerate(place.sites):
            to = ("--root-certificates", str(ca), "--superlink", HERE)
            own = (
                "--port",
                str(9200 + number),
                "--node-config",
                f"partition-id={number} site='{site}'",
            )
            place.start(site, ("flower-supernode", *to, *own), settings)
        place.do("submit", ("flwr", "run", str(app), "job"), settings)
        if trial is None:
            place.until("the final model", (place.out / FINAL).exists)
        else:
            model = trial.of(place.sites[0]) / "runs" / "run" / "model.safetensors"
            place.until("the final model", model.exists)
            hospitals.collect_carried(place.job, place.out, model)

    return run


def serve_sites(place: Place) -> PilotFolders:
    """Start the service of each site, with keys, kit and rules of its own."""
    trial = hospitals.make_carried(place.job, place.out)
    for name in trial.names:
        files = ("--socket", SOCKET, "--kit", "kit", "--passphrase-file", "passphrase")
        command = (sys.executable, "-c", PROGRAM, "serve", "site.toml", *files)
        place.start(f"service-{name}", command, OWN, trial.of(name))
    for name in trial.names:
        place.until(f"the service of {name}", (trial.of(name) / SOCKET).exists)
    return trial


def wired(place: Place, trial: PilotFolders, site: str) -> dict[str, str]:
    """Return the settings of an engine over our sums; `site`: a site's name in the engine."""
    return {
        "PYTHONPATH": f"{place.inside}{os.pathsep}{ROOT}",
        "SECURE_FL_COORDINATOR": str(trial.of(HUB)),
        "SECURE_FL_SITE": f"{trial.folder}/{site}/{SOCKET}",
    }


def flower_app(place: Place) -> Path:
    """Make the app's folder: the files that a user writes, and the job."""
    app = place.out / "app"
    shutil.copytree(place.inside / "flower", app)
    shutil.copy(place.inside / "job.py", app / "app")
    return app


def simulated_by_flower(place: Place) -> None:
    """Flower's simulation engine: clients as tasks of Ray's workers."""
    script, app = place.inside / "flower_simulation.py", flower_app(place)
    settings = {"FLWR_HOME": str(place.out / "home"), "PYTHONPATH": str(app), **QUIET}
    place.do("run", ("python", str(script)), settings)


def flare(mode: str) -> Callable[[Place], None]:
    """NVFLARE's proof-of-concept deployment: mutual TLS, a server, a process for each site."""

    def run(place: Place) -> None:
        space = {"NVFLARE_POC_WORKSPACE": str(place.out / "poc"), "HOME": str(place.out)}
        if mode == "sealed":
            space |= wired(place, serve_sites(place), "{name}")
        script = place.inside / "nvflare_run.py"
        place.do("run", ("python", str(script), mode), space)
        if mode == "he" and place.reads:
            place.do("open", ("python", str(place.inside / "nvflare_open.py"), str(place.out)))

    return run


def fedbiomed(place: Place, mode: str) -> None:
    """A researcher's gRPC server over TLS, and a node for each site, which has its own dataset."""
    at = {"FBM_SERVER_HOST": HOST, "FBM_SERVER_PORT": str(PORT)}
    at |= {"FBM_RESEARCHER_IP": HOST, "FBM_RESEARCHER_PORT": str(PORT), "HOME": str(place.out)}
    lead = place.out / "researcher"
    create = ("fedbiomed", "component", "create", "-p")
    place.do("create", (*create, str(lead), "-c", "RESEARCHER"), at)
    for site in place.sites:
        home, about = place.out / "nodes" / site, place.out / f"{site}.json"
        place.do("create", (*create, str(home), "-c", "NODE", "-n", site), at)
        records = {"path": str(place.job / "sites" / f"{site}.npz"), "tags": "#records"}
        records |= {"name": site, "data_type": "custom", "description": "the records of the job"}
        about.write_text(json.dumps(records))
        node = ("fedbiomed", "node", "-p", str(home))
        place.do("create", (*node, "dataset", "add", "-fl", str(about)), at)
        place.start(site, (*node, "start"), {**at, SITE: site})
    own = {**at, "FBM_RESEARCHER_COMPONENT_ROOT": str(lead)}
    place.start("server", ("python", str(place.inside / "fedbiomed_run.py"), mode), own)
    place.until("the end of the run", lambda: ended(place))
    if not (place.out / FINAL).exists():
        raise RuntimeError((place.out / "server.log").read_text(errors="replace")[-600:])


def ours(place: Place, mode: Protection = "he+secagg") -> None:
    """A pilot: a process for each hospital, with keys, kit and rules of its own, and the hub."""
    trial = hospitals.make(place.job, place.out, mode)
    common = ("--kit", "kit", "--passphrase-file", "passphrase")
    program = ("-m", "benchmarks.peers.ours_lying") if place.mishap else ("-c", PROGRAM)
    lead = ("coordinate", "plan.toml", *common, "--out", "run")
    for log, name in (("server", HUB), *((name, name) for name in trial.names)):
        what = lead if name == HUB else ("join", "site.toml", *common)
        command = (sys.executable, *program, *what)
        place.start(log, command, OWN | {SITE: name}, trial.of(name))
    place.until("the end of the run", lambda: ended(place))
    if place.running["server"].returncode:
        raise RuntimeError((place.out / "server.log").read_text()[-600:])
    hospitals.collect(place.job, place.out, trial)


def ended(place: Place) -> bool:
    """Return True if the server's process ended by itself."""
    return place.running["server"].poll() not in (None, -signal.SIGKILL)


def simulated_here(place: Place) -> None:
    """A `Federation` in one process, nothing sealed."""
    place.do("run", (sys.executable, "-m", "benchmarks.peers.ours_simulation"), OWN)


def simulated_by_pfl(place: Place) -> None:
    """Pfl's simulated backend, in one process."""
    place.do("run", ("python", str(place.inside / "pfl_simulation.py")))


FLARE_FILES = ("nvflare_client.py", "nvflare_model.py", "nvflare_run.py")
FEDBIOMED_FILES = ("fedbiomed_plan.py", "fedbiomed_run.py")
FLOWER_FILES = ("flower/pyproject.toml", "flower/app/plain.py")


def _ours(label: str, mode: Protection) -> Way:
    """Run a pilot in a mode; a user writes a plan and each site's rules, which are settings."""
    return Way("", f"ours, {label}, TLS", True, partial(ours, mode=mode), "coordinate")


def _flare(label: str, mode: str) -> Way:
    run, sealed = flare(mode), mode != "plain"
    return Way("nvflare", label, sealed, run, FLARE_SERVER, FLARE_FILES, start_flare)


def _fedbiomed(label: str, mode: str) -> Way:
    run, masked = partial(fedbiomed, mode=mode), mode == "secagg"
    return Way("fedbiomed", label, masked, run, "fedbiomed_run", FEDBIOMED_FILES)


def _flower(label: str, component: str, server: str) -> Way:
    files = ("flower/pyproject.toml", f"flower/app/{component}.py")
    return Way("flwr", label, component != "plain", flower(component), server, files)


def _simulated(system: str, label: str, run: Callable[[Place], None], *files: str) -> Way:
    return Way(system, label, False, run, NO_SERVER, files)


WAYS: Mapping[str, Way] = MappingProxyType(
    {
        "ours": _ours("sealed and masked", "he+secagg"),
        "ours-masks": _ours("masked alone", "secagg"),
        WITHOUT_MASKS: _ours("without its masks", "he"),
        "ours-simulated": _simulated(
            "", "ours, simulated, in the clear", simulated_here, "../ours_simulation.py"
        ),
        "flower-simulated": _simulated(
            "flwr",
            "Flower, simulated (Ray)",
            simulated_by_flower,
            *FLOWER_FILES,
            "flower_simulation.py",
        ),
        "pfl-simulated": _simulated("pfl", "pfl, simulated", simulated_by_pfl, "pfl_simulation.py"),
        "nvflare": _flare("NVFLARE, TLS", "plain"),
        "nvflare-sealed": _flare("NVFLARE over our sums, TLS", "sealed"),
        "nvflare-he": _flare("NVFLARE, HE, TLS", "he"),
        "fedbiomed": _fedbiomed("Fed-BioMed, TLS", "plain"),
        "fedbiomed-secagg": _fedbiomed("Fed-BioMed, secure aggregation, TLS", "secagg"),
        "flower": _flower("Flower, TLS", "plain", "superlink|serverapp|superexec.*serverapp"),
        "flower-sealed": _flower(
            "Flower over our sums, TLS", "sealed", "superlink|serverapp|superexec.*serverapp"
        ),
        "flower-secagg": _flower("Flower, SecAgg+, TLS", "secagg", "superlink|serverapp"),
    }
)
