// A network between nodes and their Redis that tests can break. It can drop, repeat or delay
// publications to one node, hold or close the node's connections, and stop all data on a connection
// that stays open. Bytes pass unchanged, one whole reply at a time. A node is recognised by its id,
// which is part of the names of its connections. Owns the connections and the active faults.

import { createServer, type Socket, connect as tcp } from "node:net";
import type { Test } from "tap";
import {
  type RedisClusterServers,
  type RedisServer,
  startRedis,
  startRedisCluster,
} from "./redis.ts";

export interface FaultyNetwork {
  /** Addresses inside the network, for `redis.url`. */
  readonly url: string;
  /** The Redis server, or the primaries of the Redis Cluster, on the other side. */
  readonly servers: readonly RedisServer[];
  /** Drops the node's next publication with this text. Resolves when it has been dropped. */
  dropPublication(nodeId: string, text: string): Promise<void>;
  /** Delivers the node's next publication with this text twice. Resolves when that is done. */
  duplicatePublication(nodeId: string, text: string): Promise<void>;
  /**
   * Delays the node's next publication with this text until `release` is called. Later publications
   * overtake it. `arrived` resolves when Redis has sent the publication.
   */
  delayPublication(nodeId: string, text: string): { arrived: Promise<void>; release(): void };
  /** Resolves when a publication with this text has been sent to the node. */
  publicationPassed(nodeId: string, text: string): Promise<void>;
  /** Holds all data for the node's subscriber connections. Returns a function that releases it. */
  holdPublications(nodeId: string): () => void;
  /** Holds the replies to the node's commands. Returns a function that releases them. */
  holdReplies(nodeId: string): () => void;
  /**
   * Closes the connection on which the node sends its next command with all these texts, so that
   * Redis never receives the command. Resolves when the connection is closed.
   */
  dropCommand(nodeId: string, texts: readonly string[]): Promise<void>;
  /** Closes the node's subscriber connections. The node may connect again. */
  cutSubscriptions(nodeId: string): void;
  /**
   * Closes the node's subscriber connections, and every new one until the returned function is
   * called.
   */
  blockSubscriptions(nodeId: string): () => void;
  /** Drops all bytes on the node's current subscriber connections, but leaves them open. */
  silenceSubscriptions(nodeId: string): void;
}

type Action = "drop" | "repeat" | "delay" | "watch";

/** Action on the next publication to a node if the publication contains `text`. */
interface PublicationRule {
  readonly nodeId: string;
  readonly text: string;
  readonly action: Action;
  /** Called when the publication arrives. `send` forwards a delayed publication. */
  onMatch(send: () => void): void;
}

/** A command of a node that must not reach Redis, recognised by its `texts`. */
interface CommandRule {
  readonly nodeId: string;
  readonly texts: readonly string[];
  onMatch(): void;
}

interface Connection {
  readonly node: Socket;
  readonly redis: Socket;
  /** Name of the connection, empty until the node has set it. */
  name: string;
  subscribes: boolean;
  isSilent: boolean;
  /** Beginning of a reply of Redis that is not complete yet. */
  partial: Buffer;
  /** Complete replies that are held back. */
  heldReplies: Buffer[];
}

type Traffic = "publications" | "replies";

const HOST = "127.0.0.1";
const SETNAME = /setname\r\n\$\d+\r\n([^\r]+)\r\n/i;
const PUBLICATION = Buffer.from("*3\r\n$8\r\nsmessage\r\n");
const NOTHING = Buffer.alloc(0);
const ANNOUNCE_TIMEOUT_MS = 120_000;

/** Starts one Redis server with a network in front of it. */
export async function startFaultyRedis(
  t: Test,
  args: readonly string[] = [],
): Promise<FaultyNetwork> {
  const server = await startRedis(t, args);
  const network = new NetworkState(t);
  const port = await network.open(server.port);
  return network.controls(`redis://${HOST}:${port}`, [server]);
}

/** Starts a Redis Cluster of three primaries that announce their ports inside the network. */
export async function startFaultyRedisCluster(t: Test): Promise<FaultyNetwork> {
  const servers = await startRedisCluster(t);
  const network = new NetworkState(t);
  const { primaries } = servers;
  const ports = await Promise.all(primaries.map(({ port }) => network.open(port)));
  for (const [at, { client }] of primaries.entries())
    await client().config("SET", "cluster-announce-port", `${ports[at]}`);
  await waitUntilAnnounced(servers, ports);
  const urls = ports.map((port) => `redis://${HOST}:${port}`);
  return network.controls(urls.join(","), primaries);
}

/** Waits until every server reports the network's ports of all servers. */
async function waitUntilAnnounced(
  { primaries }: RedisClusterServers,
  ports: readonly number[],
): Promise<void> {
  const deadline = Date.now() + ANNOUNCE_TIMEOUT_MS;
  for (const { client } of primaries) {
    const redis = client();
    for (;;) {
      const ranges = await redis.cluster("SLOTS");
      const announced = ranges.flatMap(([, , primary]) => primary?.[1] ?? []);
      if (ports.every((port) => announced.includes(port))) break;
      if (Date.now() > deadline)
        throw new Error("the Redis Cluster did not announce the network's ports in time");
      await new Promise((go) => setTimeout(go, 50));
    }
  }
}

class NetworkState {
  readonly #t: Test;
  readonly #connections = new Set<Connection>();
  readonly #publicationRules = new Set<PublicationRule>();
  readonly #commandRules = new Set<CommandRule>();
  readonly #blockedNodes = new Set<string>();
  readonly #holds = new Set<{ nodeId: string; traffic: Traffic }>();

  constructor(t: Test) {
    this.#t = t;
  }

  /** Opens a port that is forwarded to the server's port. */
  async open(port: number): Promise<number> {
    const server = createServer((node) => this.#connect(node, port));
    await new Promise<void>((resolve) => server.listen(0, HOST, resolve));
    this.#t.teardown(() => {
      server.close();
      for (const connection of this.#connections) destroy(connection);
    });
    const address = server.address();
    if (address === null || typeof address === "string")
      throw new Error("the network does not listen on a port");
    return address.port;
  }

  controls(url: string, servers: readonly RedisServer[]): FaultyNetwork {
    const addRule = (nodeId: string, text: string, action: Action) =>
      new Promise<() => void>((resolve) => {
        this.#publicationRules.add({ nodeId, text, action, onMatch: resolve });
      });
    const matched = async (...rule: Parameters<typeof addRule>) => {
      await addRule(...rule);
    };
    return {
      ...{ url, servers },
      dropPublication: (nodeId, text) => matched(nodeId, text, "drop"),
      duplicatePublication: (nodeId, text) => matched(nodeId, text, "repeat"),
      publicationPassed: (nodeId, text) => matched(nodeId, text, "watch"),
      delayPublication: (nodeId, text) => {
        const delayed = addRule(nodeId, text, "delay");
        return {
          arrived: delayed.then(() => {}),
          release: () => void delayed.then((send) => send()),
        };
      },
      holdPublications: (nodeId) => this.#hold(nodeId, "publications"),
      holdReplies: (nodeId) => this.#hold(nodeId, "replies"),
      dropCommand: (nodeId, texts) =>
        new Promise((onMatch) => {
          this.#commandRules.add({ nodeId, texts, onMatch });
        }),
      cutSubscriptions: (nodeId) => {
        for (const connection of this.#subscriptions(nodeId)) destroy(connection);
      },
      blockSubscriptions: (nodeId) => {
        this.#blockedNodes.add(nodeId);
        for (const connection of this.#subscriptions(nodeId)) destroy(connection);
        return () => {
          this.#blockedNodes.delete(nodeId);
        };
      },
      silenceSubscriptions: (nodeId) => {
        for (const connection of this.#subscriptions(nodeId)) connection.isSilent = true;
      },
    };
  }

  #subscriptions(nodeId: string): readonly Connection[] {
    return [...this.#connections].filter(
      ({ name, subscribes }) => subscribes && name.includes(nodeId),
    );
  }

  #hold(nodeId: string, traffic: Traffic): () => void {
    const hold = { nodeId, traffic };
    this.#holds.add(hold);
    return () => {
      this.#holds.delete(hold);
      for (const connection of this.#connections) {
        if (this.#isHeld(connection)) continue;
        const { heldReplies } = connection;
        connection.heldReplies = [];
        for (const reply of heldReplies) connection.node.write(reply);
      }
    };
  }

  #isHeld({ name, subscribes }: Connection): boolean {
    const carried = subscribes ? "publications" : "replies";
    return [...this.#holds].some(
      ({ nodeId, traffic }) => traffic === carried && name.includes(nodeId),
    );
  }

  #connect(node: Socket, port: number): void {
    const connection: Connection = {
      ...{ node, redis: tcp(port, HOST), name: "", subscribes: false },
      ...{ isSilent: false, partial: NOTHING, heldReplies: [] },
    };
    this.#connections.add(connection);
    node.on("data", (bytes) => this.#fromNode(connection, bytes));
    connection.redis.on("data", (bytes) => this.#fromRedis(connection, bytes));
    for (const socket of [node, connection.redis]) {
      socket.on("error", () => {}); // the other end was closed; "close" follows
      socket.on("close", () => {
        destroy(connection);
        this.#connections.delete(connection);
      });
    }
  }

  #fromNode(connection: Connection, bytes: Buffer): void {
    if (connection.isSilent) return;
    const text = bytes.toString("latin1");
    connection.name = SETNAME.exec(text)?.[1] ?? connection.name;
    connection.subscribes = connection.name.endsWith("-subscriber");
    if (connection.subscribes && this.#isBlocked(connection)) return destroy(connection);
    for (const rule of this.#commandRules) {
      if (!connection.name.includes(rule.nodeId)) continue;
      if (!rule.texts.every((part) => text.includes(part))) continue;
      this.#commandRules.delete(rule);
      rule.onMatch();
      return destroy(connection);
    }
    connection.redis.write(bytes);
  }

  #isBlocked({ name }: Connection): boolean {
    return [...this.#blockedNodes].some((nodeId) => name.includes(nodeId));
  }

  #fromRedis(connection: Connection, bytes: Buffer): void {
    if (connection.isSilent) return;
    const { partial } = connection;
    const buffer = partial.length > 0 ? Buffer.concat([partial, bytes]) : bytes;
    let start = 0;
    for (let end = endOfReply(buffer, start); end > 0; end = endOfReply(buffer, start)) {
      this.#handleReply(connection, buffer.subarray(start, end));
      start = end;
    }
    connection.partial = buffer.subarray(start);
  }

  #handleReply(connection: Connection, reply: Buffer): void {
    const isPublication = reply.subarray(0, PUBLICATION.length).equals(PUBLICATION);
    const rule = isPublication ? this.#findRule(connection, reply) : undefined;
    if (rule === undefined) return this.#forward(connection, reply);
    this.#publicationRules.delete(rule);
    const copy = Buffer.from(reply);
    if (rule.action === "watch" || rule.action === "repeat") this.#forward(connection, reply);
    if (rule.action === "repeat") this.#forward(connection, copy);
    rule.onMatch(() => this.#forward(connection, copy));
  }

  #findRule({ name }: Connection, reply: Buffer): PublicationRule | undefined {
    for (const rule of this.#publicationRules)
      if (name.includes(rule.nodeId) && reply.includes(rule.text)) return rule;
    return undefined;
  }

  #forward(connection: Connection, reply: Buffer): void {
    if (this.#isHeld(connection)) connection.heldReplies.push(Buffer.from(reply));
    else connection.node.write(reply);
  }
}

function destroy({ node, redis }: Connection): void {
  node.destroy();
  redis.destroy();
}

/** Returns the end of the reply that begins at `start`, or 0 if the reply is not complete yet. */
function endOfReply(bytes: Buffer, start: number): number {
  const lineEnd = bytes.indexOf("\r\n", start);
  if (lineEnd < 0) return 0;
  const bodyStart = lineEnd + 2;
  const type = String.fromCharCode(bytes[start] ?? 0);
  if (type !== "$" && type !== "*") return bodyStart;
  const size = Number(bytes.toString("latin1", start + 1, lineEnd));
  if (size < 0) return bodyStart; // null
  if (type === "$") {
    const end = bodyStart + size + 2;
    return end <= bytes.length ? end : 0;
  }
  let end = bodyStart;
  for (let items = 0; items < size && end > 0; items++) end = endOfReply(bytes, end);
  return end;
}
