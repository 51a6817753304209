// Browsers start no worker from a page on a disk. There, the script of the search runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const scope = frame.contentWindow;
      scope.postMessage = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        this.onmessage?.(event);
      };
      this.ready = new Promise((resolve, reject) => {
        const script = scope.document.createElement("script");
        script.onload = () => resolve(scope);
        script.onerror = reject;
        script.src = new URL(url, location.href);
        scope.document.body.append(script);
      });
      this.terminate = () => frame.remove();
    }

    async postMessage(data) {
      const scope = await this.ready;
      const event = new scope.MessageEvent("message", { data });
      scope.dispatchEvent(event);
    }
  };
}
