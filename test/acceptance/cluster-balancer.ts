// A TCP load balancer in front of the nodes: one address for all clients. Each connection goes to
// the next node that passed its last health check. The balancer forwards bytes without reading
// them.

import { once } from "node:events";
import { type AddressInfo, connect, createServer, type Server, type Socket } from "node:net";
import { setTimeout as pause } from "node:timers/promises";
import type { Test } from "tap";
import type { ClusterNodes } from "./cluster-nodes.ts";

/** Time between two health checks of a node. */
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
      this.#track(socket);
      this.#forward(socket, nodes.count);
    });
  }

  static async start(t: Test, nodes: ClusterNodes): Promise<Balancer> {
    const balancer = new Balancer(nodes);
    const indexes = Array.from({ length: nodes.count }, (_, at) => at);
    balancer.#server.listen(0, "127.0.0.1");
    await once(balancer.#server, "listening");
    const running = indexes.map((at) => balancer.#watch(at));
    t.teardown(async () => {
      balancer.#server.close();
      await Promise.all(running);
      for (const socket of balancer.#sockets) socket.destroy();
    });
    return balancer;
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port; // a TCP server has an AddressInfo
  }

  /**
   * Connects the client to the next ready node. Tries at most `tries` nodes, then closes the
   * client.
   */
  #forward(client: Socket, tries: number): void {
    if (tries === 0) return void client.destroy();
    const at = this.#turn++ % this.#nodes.count;
    if (!this.#ready.has(at)) return this.#forward(client, tries - 1);
    const port = this.#nodes.clientPortOf(at);
    const node = connect({ port, host: "127.0.0.1", noDelay: true });
    const tryNext = () => this.#forward(client, tries - 1);
    node.once("error", tryNext);
    node.once("connect", () => {
      node.off("error", tryNext);
      this.#track(node);
      client.pipe(node).pipe(client);
      client.once("close", () => node.destroy());
      node.once("close", () => client.destroySoon());
    });
  }

  async #watch(at: number): Promise<void> {
    while (this.#server.listening) {
      const response = await this.#nodes.callOf(at, "/readyz").catch(() => undefined); // an unreachable node is not ready
      if (response?.status === 200) this.#ready.add(at);
      else this.#ready.delete(at);
      await pause(CHECK_MS);
    }
  }

  #track(socket: Socket): void {
    this.#sockets.add(socket);
    socket.on("error", () => undefined); // a `close` event always follows
    socket.once("close", () => this.#sockets.delete(socket));
  }
}
