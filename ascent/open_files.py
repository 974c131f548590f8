"""How many files and sockets this process may have open."""

from __future__ import annotations


def allowed_sockets(wanted: int) -> int:
    """`wanted`, or half of the files that may be open. That limit is raised first, as far as the system allows."""
    try:
        import resource
    except ImportError:  # Windows, which has none
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < 2 * wanted:
        most = 2 * wanted if hard == resource.RLIM_INFINITY else min(2 * wanted, hard)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = most
        except (OSError, ValueError):  # some systems allow less than they say
            pass
    return wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, soft // 2))
