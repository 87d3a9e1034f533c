// A TCP balancer in front of the nodes, as operators have one: one address for all clients, each
// connection goes to the next node that is ready, as health checks told last. State: the
// connections, whose turn it is, who is ready. It knows nothing of what passes through.

import { once } from "node:events";
import { type AddressInfo, connect, createServer, type Server, type Socket } from "node:net";
import { setTimeout as pause } from "node:timers/promises";
import type { Test } from "tap";
import type { ClusterNodes } from "./cluster-nodes.ts";

/** Between two health checks of a node. */
const CHECK_MS = 50;

export class Balancer {
  readonly #server: Server;
  readonly #nodes: ClusterNodes;
  readonly #ready = new Set<number>();
  readonly #sockets = new Set<Socket>();
  #turn = 0;

  private constructor(nodes: ClusterNodes) {
    this.#nodes = nodes;
    this.#server = createServer({ noDelay: true }, (socket) => {
      this.#keep(socket);
      this.#pass(socket, nodes.count);
    });
  }

  static async start(t: Test, nodes: ClusterNodes): Promise<Balancer> {
    const balancer = new Balancer(nodes);
    const checks = Array.from({ length: nodes.count }, (_, at) => at);
    balancer.#server.listen(0, "127.0.0.1");
    await once(balancer.#server, "listening");
    const running = checks.map((at) => balancer.#watch(at));
    t.teardown(async () => {
      balancer.#server.close();
      await Promise.all(running);
      for (const socket of balancer.#sockets) socket.destroy();
    });
    return balancer;
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port; // it listens on TCP
  }

  /** To the next node; to the one after it where that takes nobody. */
  #pass(client: Socket, tries: number): void {
    if (tries === 0) return void client.destroy();
    const at = this.#turn++ % this.#nodes.count;
    if (!this.#ready.has(at)) return this.#pass(client, tries - 1);
    const port = this.#nodes.clientPortOf(at);
    const node = connect({ port, host: "127.0.0.1", noDelay: true });
    const next = () => this.#pass(client, tries - 1);
    node.once("error", next);
    node.once("connect", () => {
      node.off("error", next);
      this.#keep(node);
      client.pipe(node).pipe(client);
      client.once("close", () => node.destroy());
      node.once("close", () => client.destroySoon());
    });
  }

  async #watch(at: number): Promise<void> {
    while (this.#server.listening) {
      const answer = await this.#nodes.callOf(at, "/readyz").catch(() => undefined); // gone: not ready
      if (answer?.status === 200) this.#ready.add(at);
      else this.#ready.delete(at);
      await pause(CHECK_MS);
    }
  }

  #keep(socket: Socket): void {
    this.#sockets.add(socket);
    socket.on("error", () => undefined); // the close that follows tells
    socket.once("close", () => this.#sockets.delete(socket));
  }
}
