// Sharded subscriptions of the node: each topic at the server of its slot, one connection per
// server. Topics lost with a connection or a moved slot are subscribed again. State: wanted names,
// lost ones, connections.

import { randomUUID } from "node:crypto";
import type { Redis } from "ioredis";
import { BrokerError } from "../../../broker/errors.ts";
import { createClient } from "../../../redis/client.ts";
import type { RedisLink } from "../../../redis/link.ts";
import { pause, within } from "./deadline.ts";
import { SubscriberConnection } from "./subscriber-connection.ts";
import { type Address, ONLY_SERVER, Topology } from "./topology.ts";

interface SubscriberParts {
  readonly link: RedisLink;
  /** Shows in CLIENT LIST. */
  readonly name: string;
  /** Unix milliseconds. */
  readonly clock: () => number;
  readonly onFrame: (name: string, frame: Buffer) => void;
  /** Publications under these names may be missed since `sinceMs`. */
  readonly onLost: (names: readonly string[], sinceMs: number) => void;
  /** These names are subscribed again. */
  readonly onBack: (names: readonly string[]) => void;
  readonly onError: (error: unknown, what: string) => void;
}

const RETRY_MS = 50;
const MAX_RECONNECT_MS = 1000;

const reconnectMs = (times: number): number => Math.min(times * RETRY_MS, MAX_RECONNECT_MS);

export class Subscriber {
  readonly #parts: SubscriberParts;
  readonly #topology: Topology;
  readonly #connections = new Map<Address, SubscriberConnection>();
  /** Wanted names; each connection knows those that it carries. */
  readonly #wanted = new Set<string>();
  /** Wanted and lost. */
  readonly #lost = new Set<string>();
  /** Template of new connections. */
  #like: Redis | undefined;
  #isHoming = false;
  #isClosed = false;

  constructor(parts: SubscriberParts) {
    this.#parts = parts;
    const { link, clock, onError } = parts;
    const onChange = (sinceMs: number) => this.#moved(sinceMs);
    this.#topology = new Topology(link, { clock, onChange, onError });
  }

  /** Connects. Throws when Redis does not let it. */
  async start(): Promise<void> {
    const { link } = this.#parts;
    [this.#like] = link.primaries();
    await this.#topology.start();
    if (!link.isCluster) await this.#connection(ONLY_SERVER).connect();
  }

  /**
   * Resolves when subscribed. Rejects `unavailable`; the name is then not wanted. One call per name
   * at a time.
   */
  async subscribe(name: string): Promise<void> {
    const deadline = Date.now() + this.#timeoutMs;
    this.#wanted.add(name);
    for (;;)
      try {
        return await this.#subscribe(name);
      } catch (error) {
        const { isUp } = this.#parts.link;
        const isWanted = isUp && this.#wanted.has(name);
        if (!isWanted || Date.now() > deadline) {
          this.unsubscribe(name);
          throw error;
        }
        await pause(RETRY_MS);
      }
  }

  /** No effect on a name that is not wanted. */
  unsubscribe(name: string): void {
    this.#wanted.delete(name);
    this.#lost.delete(name);
    const all = [...this.#connections.values()];
    const carrier = all.find((connection) => connection.names.delete(name));
    // A subscription that timed out may still take effect at its server.
    const address = this.#topology.addressOf(name) ?? "";
    (carrier ?? this.#connections.get(address))?.unsubscribe([name]);
  }

  /** No wanted name is lost. */
  get isWhole(): boolean {
    const only = this.#connections.get(ONLY_SERVER);
    return this.#lost.size === 0 && only?.isUp !== false;
  }

  /**
   * Resolves when publications before the call have arrived. Rejects `unavailable` after a timeout.
   */
  async mark(): Promise<void> {
    const deadline = Date.now() + this.#timeoutMs;
    for (;;)
      try {
        return await within(this.#mark(), this.#timeoutMs, "no mark came");
      } catch (error) {
        const { isUp } = this.#parts.link;
        if (!isUp || this.#isClosed || Date.now() > deadline) throw error;
        await pause(RETRY_MS);
      }
  }

  close(): void {
    this.#isClosed = true;
    this.#topology.close();
    for (const connection of this.#connections.values()) connection.close();
    this.#connections.clear();
    this.#wanted.clear();
    this.#lost.clear();
  }

  get #timeoutMs(): number {
    return this.#parts.link.settings.timeoutMs;
  }

  async #subscribe(name: string): Promise<void> {
    const connection = this.#connectionOf(name);
    if (connection === undefined) throw new BrokerError("unavailable");
    await connection.subscribeSoon(name, this.#groupOf(name));
    if (!connection.isUp) throw new BrokerError("unavailable"); // lost again
    if (!this.#wanted.has(name)) {
      connection.unsubscribe([name]); // not wanted any more
      throw new BrokerError("unavailable");
    }
    connection.names.add(name);
  }

  async #mark(): Promise<void> {
    if (this.#lost.size > 0) throw new BrokerError("unavailable");
    const all = [...this.#connections.values()];
    const used = all.filter(({ names }) => names.size > 0);
    await Promise.all(used.map((connection) => connection.mark()));
  }

  /** Names of one group fit one command: on a Cluster, names of one slot. */
  #groupOf(name: string): string {
    if (!this.#parts.link.isCluster) return "";
    return name.slice(name.indexOf("{"), name.indexOf("}"));
  }

  /** Undefined as well once this is closed: nobody would close another connection. */
  #connectionOf(name: string): SubscriberConnection | undefined {
    if (this.#isClosed) return undefined;
    const address = this.#topology.addressOf(name);
    return address === undefined ? undefined : this.#connection(address);
  }

  #connection(address: Address): SubscriberConnection {
    const found = this.#connections.get(address);
    if (found !== undefined) return found;
    const { link, clock, onFrame, onError } = this.#parts;
    const made = new SubscriberConnection(this.#client(address), {
      ...{ clock, onFrame, onError },
      publish: async (to, frame) => Number(await link.call("spublish", to, frame)),
      markName: () => this.#topology.nameAt(address, `mark:${randomUUID()}`),
      onUp: () => this.#home(),
      onDown: (self, heardMs) => this.#down(self, heardMs),
    });
    this.#connections.set(address, made);
    if (address !== ONLY_SERVER)
      made.connect().catch((error) => onError(error, "The subscriber connection to Redis failed"));
    return made;
  }

  /** A connection like the link's own that reconnects by itself. */
  #client(address: Address): Redis {
    const { link, name } = this.#parts;
    const connectionName = `${name}-subscriber`;
    if (address === ONLY_SERVER) return createClient(link.settings, connectionName) as Redis;
    const like = this.#like;
    if (like === undefined) throw new BrokerError("unavailable"); // not started
    const colon = address.lastIndexOf(":");
    return like.duplicate({
      ...{
        host: address.slice(0, colon),
        port: Number(address.slice(colon + 1)),
      },
      ...{ connectionName, lazyConnect: true, readOnly: false },
      ...{ enableOfflineQueue: false, autoResubscribe: false },
      ...{ enableAutoPipelining: false, retryStrategy: reconnectMs },
    });
  }

  #down(connection: SubscriberConnection, heardMs: number): void {
    if (!this.#isClosed) this.#lose(connection, [...connection.names], heardMs);
  }

  /** Slots of the Cluster moved. */
  #moved(sinceMs: number): void {
    for (const connection of this.#connections.values()) {
      const moved = [...connection.names].filter((name) => this.#connectionOf(name) !== connection);
      this.#lose(connection, moved, sinceMs);
    }
    const serving = this.#topology.addresses();
    for (const [address, connection] of this.#connections)
      if (!serving.has(address)) {
        this.#connections.delete(address);
        connection.close();
      }
    this.#home();
  }

  #lose(connection: SubscriberConnection, names: readonly string[], sinceMs: number): void {
    if (names.length === 0) return;
    for (const name of names) {
      connection.names.delete(name);
      this.#lost.add(name);
    }
    this.#parts.onLost(names, sinceMs);
    this.#home();
  }

  /** Subscribes all lost names again; retries until done. */
  #home(): void {
    if (this.#isHoming || this.#lost.size === 0) return;
    this.#isHoming = true;
    this.#topology.hurry(true);
    void this.#subscribeLost().finally(() => {
      this.#isHoming = false;
      this.#topology.hurry(false);
    });
  }

  async #subscribeLost(): Promise<void> {
    while (this.#lost.size > 0 && !this.#isClosed) {
      await Promise.all(
        [...this.#lostByConnection()].map(([connection, names]) =>
          this.#subscribeAgain(connection, names),
        ),
      );
      if (this.#lost.size > 0) await pause(RETRY_MS);
    }
  }

  /** Lost names by connection; on a Cluster also by slot. */
  *#lostByConnection(): Iterable<readonly [SubscriberConnection, string[]]> {
    const groups = new Map<string, [SubscriberConnection, string[]]>();
    for (const name of this.#lost) {
      const connection = this.#connectionOf(name);
      if (!connection?.isUp) continue;
      const key = this.#groupOf(name);
      const group = groups.get(key) ?? [connection, []];
      groups.set(key, group);
      group[1].push(name);
    }
    yield* groups.values();
  }

  async #subscribeAgain(connection: SubscriberConnection, names: readonly string[]): Promise<void> {
    try {
      await connection.subscribe(names);
    } catch (error) {
      return this.#parts.onError(error, "Topics could not be subscribed to again");
    }
    if (!connection.isUp) return;
    const back = names.filter((name) => this.#lost.delete(name));
    for (const name of back) connection.names.add(name);
    const unwanted = names.filter((name) => !this.#wanted.has(name));
    if (unwanted.length > 0) connection.unsubscribe(unwanted);
    if (back.length > 0) this.#parts.onBack(back);
  }
}
