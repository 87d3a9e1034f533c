// Entry `jindou-client/wechat`: a WebSocket class for WeChat mini programs, built on
// `wx.connectSocket`. Bundles that do not import this entry do not contain its code.

import type { SocketConstructor, SocketLike } from "./socket.ts";

/** The part of `wx` that the class uses. */
export interface WechatApi {
  connectSocket(options: {
    readonly url: string;
    readonly protocols: string[];
    readonly fail: (result: { readonly errMsg: string }) => void;
  }): WechatSocketTask;
}

/** The part of a `SocketTask` that the class uses. */
interface WechatSocketTask {
  send(options: {
    readonly data: ArrayBuffer;
    readonly fail: (result: { readonly errMsg: string }) => void;
  }): void;
  close(options: { readonly code?: number | undefined }): void;
  onOpen(listener: () => void): void;
  onMessage(listener: (result: { readonly data: unknown }) => void): void;
  onClose(listener: (result: { readonly code?: number }) => void): void;
  onError(listener: (result: { readonly errMsg: string }) => void): void;
}

const ABNORMAL_CLOSURE = 1006;
const NORMAL_CLOSURE = 1000;

/** Returns a class to pass to `connect` in the option `webSocket`. */
export function wechatSocket(wx: WechatApi): SocketConstructor {
  return class implements SocketLike {
    binaryType = "arraybuffer";
    onopen: SocketLike["onopen"] = null;
    onmessage: SocketLike["onmessage"] = null;
    onclose: SocketLike["onclose"] = null;
    onerror: SocketLike["onerror"] = null;
    readonly #task: WechatSocketTask;

    constructor(url: string, protocols: string[]) {
      this.#task = wx.connectSocket({ url, protocols, fail: this.#failed });
      this.#task.onOpen(() => this.onopen?.({}));
      this.#task.onMessage(({ data }) => this.onmessage?.({ data }));
      this.#task.onClose(({ code = ABNORMAL_CLOSURE }) => this.onclose?.({ code }));
      this.#task.onError(this.#failed);
    }

    readonly #failed = ({ errMsg }: { readonly errMsg: string }) =>
      this.onerror?.({ message: errMsg });

    send(data: Uint8Array): void {
      // `data` may be a part of its buffer, but `wx` sends whole buffers
      this.#task.send({ data: data.slice().buffer as ArrayBuffer, fail: this.#failed });
    }

    close(code = NORMAL_CLOSURE): void {
      this.#task.close({ code });
    }
  };
}
