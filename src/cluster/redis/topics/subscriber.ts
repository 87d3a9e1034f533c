// The node's sharded subscriptions. Each topic is subscribed to on its slot's server, over one
// connection per server.

import { randomUUID } from "node:crypto";
import type { Redis } from "ioredis";
import { BrokerError } from "../../../broker/errors.ts";
import { createClient } from "../../../redis/client.ts";
import type { RedisLink } from "../../../redis/link.ts";
import { pause, within } from "./deadline.ts";
import { SubscriberConnection } from "./subscriber-connection.ts";
import { type Address, ONLY_SERVER, Topology } from "./topology.ts";

interface SubscriberPorts {
  readonly link: RedisLink;
  readonly name: string;
  readonly clock: () => number;
  readonly onFrame: (name: string, frame: Buffer) => void;
  /** Called when publications that were sent to these names after `sinceMs` may be missing. */
  readonly onLost: (names: readonly string[], sinceMs: number) => void;
  readonly onResubscribed: (names: readonly string[]) => void;
  readonly onError: (error: unknown, message: string) => void;
}

const RETRY_MS = 50;
const MAX_RECONNECT_MS = 1000;

const reconnectMs = (times: number): number => Math.min(times * RETRY_MS, MAX_RECONNECT_MS);

export class Subscriber {
  readonly #ports: SubscriberPorts;
  readonly #topology: Topology;
  readonly #connections = new Map<Address, SubscriberConnection>();
  readonly #names = new Set<string>();
  readonly #lostNames = new Set<string>();
  #template: Redis | undefined;
  #isResubscribing = false;
  #isClosed = false;

  constructor(ports: SubscriberPorts) {
    this.#ports = ports;
    const { link, clock, onError } = ports;
    const onChange = (sinceMs: number) => this.#onSlotsMoved(sinceMs);
    this.#topology = new Topology(link, { clock, onChange, onError });
  }

  async start(): Promise<void> {
    const { link } = this.#ports;
    [this.#template] = link.primaries();
    await this.#topology.start();
    if (!link.isCluster) await this.#connection(ONLY_SERVER).connect();
  }

  /** Subscribes to a name. Must not be called again for the name before the promise has settled. */
  async subscribe(name: string): Promise<void> {
    const deadline = performance.now() + this.#timeoutMs;
    this.#names.add(name);
    for (;;)
      try {
        return await this.#subscribe(name);
      } catch (error) {
        const { isUp } = this.#ports.link;
        const isWanted = isUp && this.#names.has(name);
        if (!isWanted || performance.now() > deadline) {
          this.unsubscribe(name);
          throw error;
        }
        await pause(RETRY_MS);
      }
  }

  unsubscribe(name: string): void {
    this.#names.delete(name);
    this.#lostNames.delete(name);
    const connections = [...this.#connections.values()];
    const carrier = connections.find((connection) => connection.names.delete(name));
    // A subscription that timed out may still take effect at its server.
    const address = this.#topology.addressOf(name) ?? "";
    (carrier ?? this.#connections.get(address))?.unsubscribe([name]);
  }

  /** True if no subscription is lost. Without a Redis Cluster, the connection must also be up. */
  get isComplete(): boolean {
    const only = this.#connections.get(ONLY_SERVER);
    return this.#lostNames.size === 0 && only?.isUp !== false;
  }

  async mark(): Promise<void> {
    const deadline = performance.now() + this.#timeoutMs;
    for (;;)
      try {
        return await within(
          this.#mark(),
          this.#timeoutMs,
          "the publication used to check the connection did not arrive in time",
        );
      } catch (error) {
        const { isUp } = this.#ports.link;
        if (!isUp || this.#isClosed || performance.now() > deadline) throw error;
        await pause(RETRY_MS);
      }
  }

  close(): void {
    this.#isClosed = true;
    this.#topology.close();
    for (const connection of this.#connections.values()) connection.close();
    this.#connections.clear();
    this.#names.clear();
    this.#lostNames.clear();
  }

  get #timeoutMs(): number {
    return this.#ports.link.settings.timeoutMs;
  }

  async #subscribe(name: string): Promise<void> {
    const connection = this.#connectionOf(name);
    if (connection === undefined) throw new BrokerError("unavailable");
    await connection.subscribeSoon(name, this.#batchKeyOf(name));
    if (!connection.isUp) throw new BrokerError("unavailable"); // the connection has been lost
    if (!this.#names.has(name)) {
      connection.unsubscribe([name]); // the name is no longer needed
      throw new BrokerError("unavailable");
    }
    connection.names.add(name);
  }

  async #mark(): Promise<void> {
    if (this.#lostNames.size > 0) throw new BrokerError("unavailable");
    const connections = [...this.#connections.values()];
    const used = connections.filter(({ names }) => names.size > 0);
    await Promise.all(used.map((connection) => connection.mark()));
  }

  #batchKeyOf(name: string): string {
    if (!this.#ports.link.isCluster) return "";
    return name.slice(name.indexOf("{"), name.indexOf("}"));
  }

  #connectionOf(name: string): SubscriberConnection | undefined {
    if (this.#isClosed) return undefined;
    const address = this.#topology.addressOf(name);
    return address === undefined ? undefined : this.#connection(address);
  }

  #connection(address: Address): SubscriberConnection {
    const existing = this.#connections.get(address);
    if (existing !== undefined) return existing;
    const { link, clock, onFrame, onError } = this.#ports;
    const created = new SubscriberConnection(this.#client(address), {
      ...{ clock, onFrame, onError },
      publish: async (to, frame) => Number(await link.call("spublish", to, frame)),
      markName: () => this.#topology.nameAt(address, `mark:${randomUUID()}`),
      onUp: () => this.#resubscribe(),
      onDown: (self, receivedUntilMs) => this.#onConnectionLost(self, receivedUntilMs),
    });
    this.#connections.set(address, created);
    if (address !== ONLY_SERVER)
      created
        .connect()
        .catch((error) =>
          onError(error, "The subscriber connection to Redis failed; connecting again"),
        );
    return created;
  }

  #client(address: Address): Redis {
    const { link, name } = this.#ports;
    const connectionName = `${name}-subscriber`;
    if (address === ONLY_SERVER) return createClient(link.settings, connectionName) as Redis;
    const template = this.#template;
    if (template === undefined) throw new BrokerError("unavailable"); // `start` was not called yet
    const colon = address.lastIndexOf(":");
    return template.duplicate({
      ...{
        host: address.slice(0, colon),
        port: Number(address.slice(colon + 1)),
      },
      ...{ connectionName, lazyConnect: true, readOnly: false },
      ...{ enableOfflineQueue: false, autoResubscribe: false },
      ...{ enableAutoPipelining: false, retryStrategy: reconnectMs },
    });
  }

  #onConnectionLost(connection: SubscriberConnection, receivedUntilMs: number): void {
    if (!this.#isClosed) this.#loseNames(connection, [...connection.names], receivedUntilMs);
  }

  #onSlotsMoved(sinceMs: number): void {
    for (const connection of this.#connections.values()) {
      const moved = [...connection.names].filter((name) => this.#connectionOf(name) !== connection);
      this.#loseNames(connection, moved, sinceMs);
    }
    const serving = this.#topology.addresses();
    for (const [address, connection] of this.#connections)
      if (!serving.has(address)) {
        this.#connections.delete(address);
        connection.close();
      }
    this.#resubscribe();
  }

  #loseNames(connection: SubscriberConnection, names: readonly string[], sinceMs: number): void {
    if (names.length === 0) return;
    for (const name of names) {
      connection.names.delete(name);
      this.#lostNames.add(name);
    }
    this.#ports.onLost(names, sinceMs);
    this.#resubscribe();
  }

  #resubscribe(): void {
    if (this.#isResubscribing || this.#lostNames.size === 0) return;
    this.#isResubscribing = true;
    this.#topology.pollFast(true);
    void this.#resubscribeLost().finally(() => {
      this.#isResubscribing = false;
      this.#topology.pollFast(false);
    });
  }

  async #resubscribeLost(): Promise<void> {
    while (this.#lostNames.size > 0 && !this.#isClosed) {
      await Promise.all(
        [...this.#lostByConnection()].map(([connection, names]) =>
          this.#resubscribeNames(connection, names),
        ),
      );
      if (this.#lostNames.size > 0) await pause(RETRY_MS);
    }
  }

  *#lostByConnection(): Iterable<readonly [SubscriberConnection, string[]]> {
    const groups = new Map<string, [SubscriberConnection, string[]]>();
    for (const name of this.#lostNames) {
      const connection = this.#connectionOf(name);
      if (!connection?.isUp) continue;
      const key = this.#batchKeyOf(name);
      const group = groups.get(key) ?? [connection, []];
      groups.set(key, group);
      group[1].push(name);
    }
    yield* groups.values();
  }

  async #resubscribeNames(
    connection: SubscriberConnection,
    names: readonly string[],
  ): Promise<void> {
    try {
      await connection.subscribe(names);
    } catch (error) {
      return this.#ports.onError(error, "Could not subscribe to lost topics; trying again");
    }
    if (!connection.isUp) return;
    const resubscribed = names.filter((name) => this.#lostNames.delete(name));
    for (const name of resubscribed) connection.names.add(name);
    const unwanted = names.filter((name) => !this.#names.has(name));
    if (unwanted.length > 0) connection.unsubscribe(unwanted);
    if (resubscribed.length > 0) this.#ports.onResubscribed(resubscribed);
  }
}
