// Loaded in the head, before anything is painted, so that the page never flashes in the other theme.
const chosen = localStorage.getItem("ascent-theme");
if (chosen) document.documentElement.dataset.theme = chosen;
