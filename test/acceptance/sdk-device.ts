// A user's device for tests of logins: an app with the SDK on a network that comes and goes, and
// that may lose a connection without the server's noticing. State: the app's client, the sockets it
// opened, what it was told at its end.

import { WebSocket } from "ws";
import {
  type Client,
  type ConnectOptions,
  connect,
  type SocketConstructor,
  type SocketLike,
} from "../../src/client/index.ts";

/** Nobody listens there. */
const NOWHERE = "ws://127.0.0.1:1";

export interface SdkDeviceOptions {
  readonly uid: string;
  readonly token: string;
  /** The port of the node that the next connection goes to. */
  readonly port: () => number;
  /** Default: a new name with each login. */
  readonly deviceId?: string | undefined;
  readonly cursors?: ConnectOptions["cursors"];
}

export class SdkDevice {
  /** Without it, connections fail at once. */
  hasNetwork = true;
  readonly #options: SdkDeviceOptions;
  readonly #wires = new Set<Wire>();
  #client: Client | undefined;
  #endedBy: string | undefined;

  constructor(options: SdkDeviceOptions) {
    this.#options = options;
  }

  /**
   * What the app was told when its client was ended by the server: a reason; undefined: it was not.
   */
  get endedBy(): string | undefined {
    return this.#endedBy;
  }

  get isOnline(): boolean {
    return this.#client?.status === "online";
  }

  /**
   * Starts the app, again if it runs: it is gone then without a goodbye. Resolves when the user is
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
    client.on("error", () => undefined); // the network is bad
    await client.ready();
  }

  /** Resolves when the server has answered something on the open session. */
  async ping(): Promise<void> {
    await this.#client?.presence([]);
  }

  /** All its connections break, and the server sees it. */
  cut(): void {
    for (const wire of this.#wires) wire.cut();
  }

  /** It loses its connections, and the server does not notice. */
  lose(): void {
    for (const wire of this.#wires) wire.lose();
  }

  /** The app is gone at once, with its connections. */
  kill(): void {
    const { hasNetwork } = this;
    this.hasNetwork = false;
    this.lose(); // so that closing the client says nothing
    void this.#client?.close();
    this.#client = undefined;
    this.hasNetwork = hasNetwork;
  }

  /** Lets go of everything. */
  close(): void {
    this.kill();
    for (const wire of this.#wires) wire.release();
  }

  #socketClass(): SocketConstructor {
    const device = this;
    return class extends Wire {
      constructor(_url: string, protocols: string[]) {
        const { hasNetwork } = device;
        const port = device.#options.port();
        super(hasNetwork ? `ws://127.0.0.1:${port}` : NOWHERE, protocols);
        device.#wires.add(this);
      }
    };
  }
}

/** A socket whose client can lose it while the server keeps it. */
class Wire implements SocketLike {
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
    const told = this.onclose;
    this.onclose = null;
    told?.({ code });
  }
}
