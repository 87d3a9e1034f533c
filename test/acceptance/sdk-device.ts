// A user's device for tests of logins: an app with the SDK on an unreliable network, which may lose
// a connection without the server noticing.

import { WebSocket } from "ws";
import {
  type Client,
  type ConnectOptions,
  connect,
  type SocketConstructor,
  type SocketLike,
} from "../../src/client/index.ts";

/** Address without a listener. */
const NOWHERE = "ws://127.0.0.1:1";

export interface SdkDeviceOptions {
  readonly uid: string;
  readonly token: string;
  /** The port of the node that the next connection goes to. */
  readonly port: () => number;
  /** Device id. Default: a new one for each login. */
  readonly deviceId?: string | undefined;
  readonly cursors?: ConnectOptions["cursors"];
}

export class SdkDevice {
  /** True if the device can connect. If false, new connections fail at once. */
  hasNetwork = true;
  readonly #options: SdkDeviceOptions;
  readonly #sockets = new Set<LossySocket>();
  #client: Client | undefined;
  #endedBy: string | undefined;

  constructor(options: SdkDeviceOptions) {
    this.#options = options;
  }

  /** Reason why the server ended the app's session, or `undefined` if it did not. */
  get endedBy(): string | undefined {
    return this.#endedBy;
  }

  get isOnline(): boolean {
    return this.#client?.status === "online";
  }

  /**
   * Starts the app. A running app is killed first, without a DISCONNECT. Resolves when the user is
   * logged in.
   */
  async logIn(): Promise<void> {
    this.kill();
    this.#endedBy = undefined;
    const { uid, token, deviceId, cursors } = this.#options;
    const client = connect({
      ...{ url: NOWHERE, uid, token, deviceFlag: 0 },
      ...(deviceId === undefined ? {} : { deviceId }),
      ...(cursors === undefined ? {} : { cursors }),
      reconnect: { minMs: 5, maxMs: 40 },
      webSocket: this.#socketClass(),
    });
    this.#client = client;
    client.on("kicked", ({ reason }) => {
      if (this.#client === client) this.#endedBy = reason;
    });
    client.on("error", () => undefined); // errors are expected on an unreliable network
    await client.ready();
  }

  /** Resolves when the server has responded on the open session. */
  async ping(): Promise<void> {
    await this.#client?.presence([]);
  }

  /** Breaks all connections, and the server notices. */
  cut(): void {
    for (const socket of this.#sockets) socket.cut();
  }

  /** Breaks all connections without the server noticing. */
  lose(): void {
    for (const socket of this.#sockets) socket.lose();
  }

  /** Kills the app and its connections. The server does not notice. */
  kill(): void {
    const { hasNetwork } = this;
    this.hasNetwork = false;
    this.lose(); // so that closing the client sends nothing
    void this.#client?.close();
    this.#client = undefined;
    this.hasNetwork = hasNetwork;
  }

  /** Kills the app and closes every socket. */
  close(): void {
    this.kill();
    for (const socket of this.#sockets) socket.release();
  }

  #socketClass(): SocketConstructor {
    const device = this;
    return class extends LossySocket {
      constructor(_url: string, protocols: string[]) {
        const { hasNetwork } = device;
        const port = device.#options.port();
        super(hasNetwork ? `ws://127.0.0.1:${port}` : NOWHERE, protocols);
        device.#sockets.add(this);
      }
    };
  }
}

/** A socket that its client can lose while the server's side stays open. */
class LossySocket implements SocketLike {
  binaryType = "";
  onopen: SocketLike["onopen"] = null;
  onmessage: SocketLike["onmessage"] = null;
  onclose: SocketLike["onclose"] = null;
  onerror: SocketLike["onerror"] = null;
  readonly #socket: WebSocket;
  #isLost = false;

  constructor(url: string, protocols: string[]) {
    this.#socket = new WebSocket(url, protocols, { perMessageDeflate: false });
    this.#socket.binaryType = "arraybuffer";
    this.#socket.onopen = () => this.onopen?.({});
    this.#socket.onmessage = ({ data }) => this.onmessage?.({ data });
    this.#socket.onclose = ({ code }) => this.#closed(code);
    this.#socket.onerror = () => undefined;
  }

  send(data: Uint8Array): void {
    if (!this.#isLost && this.#socket.readyState === WebSocket.OPEN) this.#socket.send(data);
  }

  close(): void {
    if (!this.#isLost) this.#socket.terminate();
  }

  terminate(): void {
    this.close();
  }

  cut(): void {
    if (!this.#isLost) this.#socket.terminate();
  }

  lose(): void {
    if (this.#isLost || this.#socket.readyState !== WebSocket.OPEN) return this.cut();
    this.#isLost = true;
    this.#socket.pause();
    this.#closed(1006);
  }

  release(): void {
    this.#socket.terminate();
  }

  #closed(code: number): void {
    const handler = this.onclose;
    this.onclose = null;
    handler?.({ code });
  }
}
