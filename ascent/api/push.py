"""Upload a folder to the hub."""

from __future__ import annotations

from pathlib import Path

import httpx
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError
from huggingface_hub.utils import validate_repo_id

LOGIN = "log in with: hf auth login, or set HF_TOKEN to a token that may write"


def check_push(repository: str) -> None:
    """ValueError, before any work, for a wrong name, without a login, and where the hub cannot be reached."""
    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise ValueError(
            f"push={repository!r} must look like OWNER/NAME ({_first_line(error)})"
        ) from None
    if "/" not in repository:
        raise ValueError(f"push={repository!r} must look like OWNER/NAME; it has no owner")
    try:
        HfApi().whoami()
    except (HfHubHTTPError, LocalTokenNotFoundError) as error:
        raise ValueError(
            f"push={repository} needs a login on the hub ({_first_line(error)}); {LOGIN}"
        ) from None
    except (httpx.HTTPError, OSError) as error:
        raise ValueError(
            f"push={repository}: the hub cannot be reached ({_first_line(error)}); export without push"
        ) from None


def push_folder(folder: Path, repository: str, *, private: bool) -> str:
    """Create the repository where there is none, and upload; returns its address."""
    api = HfApi()
    try:
        address = str(api.create_repo(repository, private=private, exist_ok=True))
        api.upload_folder(
            repo_id=repository, folder_path=folder, commit_message="Upload from ascent export"
        )
    except (httpx.HTTPError, OSError, ValueError) as error:
        raise ValueError(
            f"the upload to {repository} failed ({_first_line(error)}); the model is in {folder}: upload it later "
            f"with: hf upload {repository} {folder}"
        ) from None
    return address


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"
