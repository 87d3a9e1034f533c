// The network between nodes and their Redis, for tests of what it does to them: what Redis
// publishes to a node may be lost, come twice or late; a node's subscriptions may be cut, kept
// away, or fall silent without an end; its commands may wait or never arrive. Real sockets; bytes
// are passed on as they are, whole replies at a time. A node is known by its id in the names that
// it gives its connections. State: the connections, the faults.

import { createServer, type Socket, connect as tcp } from "node:net";
import type { Test } from "tap";
import {
  type RedisClusterServers,
  type RedisServer,
  startRedis,
  startRedisCluster,
} from "./redis.ts";

export interface FaultyNetwork {
  /** For `redis.url`. */
  readonly url: string;
  /** The servers behind: the one, or the primaries. */
  readonly servers: readonly RedisServer[];
  /**
   * The next publication to the node that contains the text is not passed on. Resolves when it was
   * to come.
   */
  dropPublication(nodeId: string, text: string): Promise<void>;
  /** ... comes twice. Resolves then. */
  duplicatePublication(nodeId: string, text: string): Promise<void>;
  /** ... waits, while later ones come, until the returned function is called. */
  delayPublication(nodeId: string, text: string): { arrived: Promise<void>; release(): void };
  /** Resolves when the next publication to the node that contains the text was passed on. */
  publicationPassed(nodeId: string, text: string): Promise<void>;
  /**
   * All that Redis says to the node's subscriptions waits until the returned function is called.
   */
  holdPublications(nodeId: string): () => void;
  /** The same of the answers to its commands. */
  holdReplies(nodeId: string): () => void;
  /**
   * The connection on which the node sends the next command that contains all these texts ends
   * before Redis gets it. Resolves then.
   */
  dropCommand(nodeId: string, texts: readonly string[]): Promise<void>;
  /** Ends the node's subscriptions. */
  cutSubscriptions(nodeId: string): void;
  /** Ends them, and each that it makes, until the returned function is called. */
  blockSubscriptions(nodeId: string): () => void;
  /** The node's subscriptions of now carry nothing any more, and neither end is told. */
  silenceSubscriptions(nodeId: string): void;
}

type Fate = "lost" | "twice" | "late" | "noted";

interface Rule {
  readonly nodeId: string;
  readonly text: string;
  readonly fate: Fate;
  /** `pass`: passes on what is held. */
  happened(pass: () => void): void;
}

interface Connection {
  readonly node: Socket;
  readonly redis: Socket;
  /** As the node calls it. */
  name: string;
  subscribes: boolean;
  isSilent: boolean;
  /** Of what Redis said, the beginning of a reply. */
  rest: Buffer;
  /** Whole replies that wait. */
  held: Buffer[];
}

type Kind = "publications" | "answers";

interface Drop {
  readonly nodeId: string;
  readonly texts: readonly string[];
  done(): void;
}

const HOST = "127.0.0.1";
const SETNAME = /setname\r\n\$\d+\r\n([^\r]+)\r\n/i;
const PUBLICATION = Buffer.from("*3\r\n$8\r\nsmessage\r\n");
const NOTHING = Buffer.alloc(0);
const ANNOUNCED_MS = 120_000;

/** One server behind a wire. */
export async function startFaultyRedis(
  t: Test,
  args: readonly string[] = [],
): Promise<FaultyNetwork> {
  const server = await startRedis(t, args);
  const net = new Net(t);
  const port = await net.open(server.port);
  return net.api(`redis://${HOST}:${port}`, [server]);
}

/** A Cluster of three primaries that tell everybody to come by their wires. */
export async function startFaultyRedisCluster(t: Test): Promise<FaultyNetwork> {
  const servers = await startRedisCluster(t);
  const net = new Net(t);
  const { primaries } = servers;
  const ports = await Promise.all(primaries.map(({ port }) => net.open(port)));
  for (const [at, { client }] of primaries.entries())
    await client().config("SET", "cluster-announce-port", `${ports[at]}`);
  await announced(servers, ports);
  const urls = ports.map((port) => `redis://${HOST}:${port}`);
  return net.api(urls.join(","), primaries);
}

/** Every server says so of every other. */
async function announced(
  { primaries }: RedisClusterServers,
  ports: readonly number[],
): Promise<void> {
  const deadline = Date.now() + ANNOUNCED_MS;
  for (const { client } of primaries) {
    const redis = client();
    for (;;) {
      const ranges = await redis.cluster("SLOTS");
      const found = ranges.flatMap(([, , primary]) => primary?.[1] ?? []);
      if (ports.every((port) => found.includes(port))) break;
      if (Date.now() > deadline) throw new Error("the wires are not announced");
      await new Promise((go) => setTimeout(go, 50));
    }
  }
}

class Net {
  readonly #t: Test;
  readonly #connections = new Set<Connection>();
  readonly #rules = new Set<Rule>();
  readonly #drops = new Set<Drop>();
  readonly #away = new Set<string>();
  readonly #holds = new Set<{ nodeId: string; kind: Kind }>();

  constructor(t: Test) {
    this.#t = t;
  }

  /** A port that leads to the server's. */
  async open(port: number): Promise<number> {
    const server = createServer((node) => this.#connect(node, port));
    await new Promise<void>((resolve) => server.listen(0, HOST, resolve));
    this.#t.teardown(() => {
      server.close();
      for (const one of this.#connections) end(one);
    });
    const address = server.address();
    if (address === null || typeof address === "string") throw new Error("no port");
    return address.port;
  }

  api(url: string, servers: readonly RedisServer[]): FaultyNetwork {
    const rule = (nodeId: string, text: string, fate: Fate) =>
      new Promise<() => void>((resolve) => {
        this.#rules.add({ nodeId, text, fate, happened: resolve });
      });
    const once = async (...asked: Parameters<typeof rule>) => {
      await rule(...asked);
    };
    return {
      ...{ url, servers },
      dropPublication: (nodeId, text) => once(nodeId, text, "lost"),
      duplicatePublication: (nodeId, text) => once(nodeId, text, "twice"),
      publicationPassed: (nodeId, text) => once(nodeId, text, "noted"),
      delayPublication: (nodeId, text) => {
        const held = rule(nodeId, text, "late");
        return {
          arrived: held.then(() => {}),
          release: () => void held.then((pass) => pass()),
        };
      },
      holdPublications: (nodeId) => this.#hold(nodeId, "publications"),
      holdReplies: (nodeId) => this.#hold(nodeId, "answers"),
      dropCommand: (nodeId, texts) =>
        new Promise((done) => {
          this.#drops.add({ nodeId, texts, done });
        }),
      cutSubscriptions: (nodeId) => {
        for (const one of this.#subscriptions(nodeId)) end(one);
      },
      blockSubscriptions: (nodeId) => {
        this.#away.add(nodeId);
        for (const one of this.#subscriptions(nodeId)) end(one);
        return () => {
          this.#away.delete(nodeId);
        };
      },
      silenceSubscriptions: (nodeId) => {
        for (const one of this.#subscriptions(nodeId)) one.isSilent = true;
      },
    };
  }

  #subscriptions(nodeId: string): readonly Connection[] {
    return [...this.#connections].filter(
      ({ name, subscribes }) => subscribes && name.includes(nodeId),
    );
  }

  #hold(nodeId: string, kind: Kind): () => void {
    const hold = { nodeId, kind };
    this.#holds.add(hold);
    return () => {
      this.#holds.delete(hold);
      for (const one of this.#connections) {
        if (this.#isHeld(one)) continue;
        const { held } = one;
        one.held = [];
        for (const reply of held) one.node.write(reply);
      }
    };
  }

  #isHeld({ name, subscribes }: Connection): boolean {
    const is = subscribes ? "publications" : "answers";
    return [...this.#holds].some(({ nodeId, kind }) => kind === is && name.includes(nodeId));
  }

  #connect(node: Socket, port: number): void {
    const one: Connection = {
      ...{ node, redis: tcp(port, HOST), name: "", subscribes: false },
      ...{ isSilent: false, rest: NOTHING, held: [] },
    };
    this.#connections.add(one);
    node.on("data", (bytes) => this.#asks(one, bytes));
    one.redis.on("data", (bytes) => this.#says(one, bytes));
    for (const socket of [node, one.redis]) {
      socket.on("error", () => {}); // its other end is gone
      socket.on("close", () => {
        end(one);
        this.#connections.delete(one);
      });
    }
  }

  #asks(one: Connection, bytes: Buffer): void {
    if (one.isSilent) return;
    const text = bytes.toString("latin1");
    one.name = SETNAME.exec(text)?.[1] ?? one.name;
    one.subscribes = one.name.endsWith("-subscriber");
    if (one.subscribes && this.#isAway(one)) return end(one);
    for (const drop of this.#drops) {
      if (!one.name.includes(drop.nodeId)) continue;
      if (!drop.texts.every((part) => text.includes(part))) continue;
      this.#drops.delete(drop);
      drop.done();
      return end(one);
    }
    one.redis.write(bytes);
  }

  #isAway({ name }: Connection): boolean {
    return [...this.#away].some((nodeId) => name.includes(nodeId));
  }

  #says(one: Connection, bytes: Buffer): void {
    if (one.isSilent) return;
    const all = one.rest.length > 0 ? Buffer.concat([one.rest, bytes]) : bytes;
    let at = 0;
    for (let to = endOf(all, at); to > 0; to = endOf(all, at)) {
      this.#reply(one, all.subarray(at, to));
      at = to;
    }
    one.rest = all.subarray(at);
  }

  #reply(one: Connection, reply: Buffer): void {
    const isPublication = reply.subarray(0, PUBLICATION.length).equals(PUBLICATION);
    const rule = isPublication ? this.#ruleOf(one, reply) : undefined;
    if (rule === undefined) return this.#pass(one, reply);
    this.#rules.delete(rule);
    const later = Buffer.from(reply);
    if (rule.fate === "noted" || rule.fate === "twice") this.#pass(one, reply);
    if (rule.fate === "twice") this.#pass(one, later);
    rule.happened(() => this.#pass(one, later));
  }

  #ruleOf({ name }: Connection, reply: Buffer): Rule | undefined {
    for (const rule of this.#rules)
      if (name.includes(rule.nodeId) && reply.includes(rule.text)) return rule;
    return undefined;
  }

  #pass(one: Connection, reply: Buffer): void {
    if (this.#isHeld(one)) one.held.push(Buffer.from(reply));
    else one.node.write(reply);
  }
}

function end({ node, redis }: Connection): void {
  node.destroy();
  redis.destroy();
}

/** Where the reply that begins there ends; 0: it is not whole. */
function endOf(bytes: Buffer, at: number): number {
  const line = bytes.indexOf("\r\n", at);
  if (line < 0) return 0;
  const after = line + 2;
  const type = String.fromCharCode(bytes[at] ?? 0);
  if (type !== "$" && type !== "*") return after;
  const size = Number(bytes.toString("latin1", at + 1, line));
  if (size < 0) return after; // null
  if (type === "$") {
    const to = after + size + 2;
    return to <= bytes.length ? to : 0;
  }
  let to = after;
  for (let items = 0; items < size && to > 0; items++) to = endOf(bytes, to);
  return to;
}
