// JSON calls over keep-alive connections, many at once, as a busy backend makes them. Implements
// only the part of HTTP that the broker's responses need, because the client of node:http takes
// longer for a call than the broker does.

import { connect, type Socket } from "node:net";

export interface JsonAnswer {
  readonly status: number;
  // biome-ignore lint/suspicious/noExplicitAny: tests read any field of a body without a schema
  readonly body: any;
}

const HEAD_END = "\r\n\r\n";

export class KeepAlive {
  readonly #idle = new Map<number, KeepAliveConnection[]>();
  readonly #all = new Set<KeepAliveConnection>();

  /**
   * POSTs JSON, or GETs if there is no body. Rejects if the connection breaks before the complete
   * response has arrived.
   */
  async call(port: number, path: string, body?: unknown): Promise<JsonAnswer> {
    const idle = this.#idle.get(port) ?? [];
    this.#idle.set(port, idle);
    let connection = idle.pop();
    while (connection?.isOver) connection = idle.pop();
    connection ??= new KeepAliveConnection(port);
    this.#all.add(connection);
    const response = await connection.call(path, body);
    idle.push(connection);
    return response;
  }

  close(): void {
    for (const connection of this.#all) connection.close();
  }
}

/** A connection for one call at a time. */
class KeepAliveConnection {
  readonly #socket: Socket;
  #received: Buffer = Buffer.alloc(0);
  #settle: ((answer: JsonAnswer | Error) => void) | undefined;
  #isOver = false;

  constructor(port: number) {
    this.#socket = connect({ host: "127.0.0.1", port, noDelay: true });
    this.#socket.on("data", (data) => this.#receive(data));
    this.#socket.on("error", () => undefined); // a `close` event always follows
    this.#socket.on("close", () => {
      this.#isOver = true;
      this.#done(new Error("the connection broke"));
    });
  }

  get isOver(): boolean {
    return this.#isOver;
  }

  call(path: string, body: unknown): Promise<JsonAnswer> {
    const text = body === undefined ? "" : JSON.stringify(body);
    const method = body === undefined ? "GET" : "POST";
    const length = Buffer.byteLength(text);
    this.#socket.write(
      `${method} ${path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: ${length}${HEAD_END}${text}`,
    );
    return new Promise((resolve, reject) => {
      this.#settle = (answer) => (answer instanceof Error ? reject(answer) : resolve(answer));
      if (this.#isOver) this.#done(new Error("the connection broke"));
    });
  }

  close(): void {
    this.#socket.destroy();
  }

  #receive(data: Buffer): void {
    const { length } = this.#received;
    this.#received = length === 0 ? data : Buffer.concat([this.#received, data]);
    const headEnd = this.#received.indexOf(HEAD_END);
    if (headEnd < 0) return;
    const head = this.#received.subarray(0, headEnd).toString("latin1");
    const size = Number(/^content-length: (\d+)/im.exec(head)?.[1]);
    const bodyAt = headEnd + HEAD_END.length;
    if (this.#received.length < bodyAt + size) return;
    const body = this.#received.subarray(bodyAt, bodyAt + size).toString();
    this.#received = Buffer.alloc(0);
    this.#done({ status: Number(head.slice(9, 12)), body: JSON.parse(body) });
  }

  #done(answer: JsonAnswer | Error): void {
    const settle = this.#settle;
    this.#settle = undefined;
    settle?.(answer);
  }
}
