// Browsers start no Web Worker from a file: URL. There the search script runs in a hidden frame instead, so that search
// works in a site that is opened from disk. Elsewhere this file does nothing.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.onmessage = null;
      this.addEventListener("message", (event) => this.onmessage && this.onmessage(event));
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.ready = new Promise((done, failed) => {
        this.frame.onload = () => {
          const inside = this.frame.contentWindow;
          const run = (source) =>
            new Promise((loaded, broken) => {
              const script = inside.document.createElement("script");
              script.src = new URL(source, document.baseURI).href;
              script.onload = loaded;
              script.onerror = broken;
              inside.document.head.append(script);
            });
          inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
          inside.importScripts = (...sources) => sources.reduce((before, each) => before.then(() => run(each)), Promise.resolve());
          run(url).then(() => done(inside), failed);
        };
      });
      this.frame.srcdoc = "<!doctype html><html><head></head><body></body></html>";
      document.body.append(this.frame);
    }

    postMessage(data) {
      this.ready.then((inside) => inside.dispatchEvent(new inside.MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
