// The control plane under faults: writers that change memberships and tokens, and devices that log
// in, at random nodes. Each value has one writer, so the last acknowledged change decides the
// value. Keeps the possible values and the problems found: a change undone by an older call, or a
// newest login that was ended.

import { setTimeout as pause } from "node:timers/promises";
import { CLOSE_REASONS } from "../../src/broker/errors.ts";
import { GROUP_CHANNEL } from "../../src/broker/model.ts";
import { connectNative } from "../support/native-client.ts";
import { type NativeClient, NativeClientError } from "../support/native-session.ts";
import type { Random } from "../support/random.ts";
import type { ClusterNodes } from "./cluster-nodes.ts";

/** Number of writers of each kind. */
const WRITERS = 2;
/** Number of tokens that are set for one user before the next user is used. */
const TOKENS_PER_USER = 3;
const MAX_PAUSE_MS = 60;
const TIMEOUT_MS = 120_000;
/** Time within which a login of a main device ends the older login after the last fault. */
const KICK_MS = 60_000;

/**
 * The possible values of something that changes, newest last. Has more than one value if a change
 * was not acknowledged.
 */
class Cell<T> {
  possible: readonly T[];

  constructor(value: T) {
    this.possible = [value];
  }

  /** Makes a change. The value is certain if the change was acknowledged. */
  async change(to: T, acknowledge: () => Promise<boolean>): Promise<void> {
    this.possible = [...this.possible, to];
    if (await acknowledge()) this.possible = [to];
  }
}

/** A login of a main device. */
interface Login {
  readonly number: number;
  readonly client: NativeClient;
  /** Close code, `undefined` while the connection is open. */
  endedWith: number | undefined;
}

export class FaultControl {
  readonly problems: string[] = [];
  /**
   * Numbers of acknowledged membership changes, of calls that set a token, of successful logins,
   * and of calls that were not acknowledged.
   */
  readonly counts = { memberships: 0, tokens: 0, logins: 0, unacknowledged: 0 };
  readonly #nodes: ClusterNodes;
  readonly #random: Random;
  readonly #members = new Map<string, Cell<boolean>>();
  readonly #tokens = new Map<string, Cell<string>>();
  readonly #newestLogins = new Map<string, Login>();
  /** Number of login attempts by user. */
  readonly #attempts = new Map<string, number>();
  readonly #settledMs: number;
  #isOver = false;
  #running: Promise<unknown> = Promise.resolve();

  /**
   * `settledMs` is the time after which an unanswered call has either run or will never run. The
   * node that received the call may have died while the command was on its way to the store.
   */
  constructor(
    nodes: ClusterNodes,
    { random, settledMs }: { readonly random: Random; readonly settledMs: number },
  ) {
    this.#nodes = nodes;
    this.#random = random;
    this.#settledMs = settledMs;
  }

  /** Creates the groups and starts the writers. */
  async start(): Promise<void> {
    const numbers = Array.from({ length: WRITERS }, (_, number) => number);
    for (const number of numbers) await this.#nodes.createGroup(clubOf(number), ["owner"]);
    this.#running = Promise.all(
      numbers.flatMap((number) => [
        this.#changeMembership(number),
        this.#changeTokens(number),
        this.#logIn(`main-${number}`),
      ]),
    );
    this.#running.catch(() => undefined); // `stop` reports the error
  }

  /**
   * Ends the changes. Resolves when every change in progress is answered and no unanswered change
   * can run any more.
   */
  async stop(): Promise<void> {
    this.#isOver = true;
    await this.#running;
    await pause(this.#settledMs);
  }

  /** Checks all memberships, and that one more login of each user ends the newest login so far. */
  async check(): Promise<void> {
    for (const [id, cell] of this.#members) await this.#checkMembership(id, cell);
    const uids = [...this.#newestLogins.keys()];
    for (const uid of uids) await this.#checkLogin(uid);
  }

  /** Checks that the node at `port` accepts exactly one of the tokens that each user may have. */
  async checkTokens(port: number): Promise<void> {
    for (const [uid, { possible }] of this.#tokens) {
      const accepted: string[] = [];
      for (const token of possible)
        if (await isAccepted({ port, uid, token })) accepted.push(token);
      if (accepted.length !== 1)
        this.problems.push(`${uid}: of the tokens ${possible} these are valid: ${accepted}`);
    }
  }

  /** Closes all connections. */
  async close(): Promise<void> {
    this.#isOver = true;
    for (const { client } of this.#newestLogins.values()) client.kill();
    await this.#running.catch(() => undefined); // `stop` reports the error
    for (const { client } of this.#newestLogins.values()) client.kill();
  }

  async #changeMembership(number: number): Promise<void> {
    const id = clubOf(number);
    const cell = new Cell(false);
    this.#members.set(id, cell);
    while (!this.#isOver) {
      await this.#checkMembership(id, cell);
      const isAdded = !cell.possible.at(-1);
      const path = isAdded ? "/channel/subscriber_add" : "/channel/subscriber_remove";
      const body = { channel_id: id, channel_type: GROUP_CHANNEL, subscribers: ["member"] };
      await cell.change(isAdded, async () => {
        const status = await this.#post(path, body);
        // 404 means that an unacknowledged removal has run, so the user was not a member any more.
        return status === 200 || (status === 404 && !isAdded);
      });
      if (cell.possible.length === 1) this.counts.memberships++;
      await this.#pause();
    }
  }

  /** Checks that the membership is the last acknowledged value or a later unacknowledged one. */
  async #checkMembership(id: string, cell: Cell<boolean>): Promise<void> {
    const path = `/channel/members?channel_id=${id}&channel_type=${GROUP_CHANNEL}`;
    for (;;) {
      const at = this.#nodes.anyNode();
      const response = await this.#nodes.callOf(at, path).catch(() => undefined);
      if (response?.status === 200) {
        const isMember = JSON.stringify(response.body).includes('"member"');
        if (!cell.possible.includes(isMember))
          this.problems.push(`${id}: isMember is ${isMember}, not ${cell.possible}`);
        cell.possible = [isMember];
        return;
      }
      await this.#pause();
    }
  }

  async #changeTokens(number: number): Promise<void> {
    for (let count = 0; !this.#isOver; count++) {
      const uid = `user-${number}-${Math.floor(count / TOKENS_PER_USER)}`;
      const token = `token-${count}`;
      const body = { uid, token, device_flag: 0, device_level: 0 };
      const isAcknowledged = async () => (await this.#post("/user/token", body)) === 200;
      const cell = this.#tokens.get(uid);
      if (cell === undefined) {
        // A user without an acknowledged token is not checked.
        if (await isAcknowledged()) this.#tokens.set(uid, new Cell(token));
      } else await cell.change(token, isAcknowledged);
      this.counts.tokens++;
      await this.#pause();
    }
  }

  /** Logs the main device of a user in, again and again. */
  async #logIn(uid: string): Promise<void> {
    while (!this.#isOver) {
      try {
        this.#newestLogins.set(uid, await this.#openLogin(uid));
        this.counts.logins++;
      } catch (error) {
        if (!(error instanceof NativeClientError)) throw error;
        this.counts.unacknowledged++;
        // Without a response the login may still be on its way to the store.
        if (error.code === "closed_1006") await pause(this.#settledMs);
      }
      await this.#pause(10);
    }
  }

  /**
   * Logs in at a random node. Records a problem if the session is kicked before the next attempt
   * begins, because then only an older login, already failed or acknowledged, can have kicked it.
   */
  async #openLogin(uid: string): Promise<Login> {
    const number = (this.#attempts.get(uid) ?? 0) + 1;
    this.#attempts.set(uid, number);
    const port = this.#nodes.clientPortOf(this.#nodes.anyNode());
    const client = await connectNative(undefined, {
      ...{ uid, port, level: 1, deviceId: `phone-${number}`, timeoutMs: TIMEOUT_MS },
    });
    const login: Login = { number, client, endedWith: undefined };
    void client.closed.then(({ code }) => {
      login.endedWith = code;
      if (code === CLOSE_REASONS.kicked.code && number === this.#attempts.get(uid))
        this.problems.push(`${uid}: login ${number} is the newest but was ended`);
    });
    return login;
  }

  /** Logs in once more, and checks that the new login ends the previous one. */
  async #checkLogin(uid: string): Promise<void> {
    const before = this.#newestLogins.get(uid);
    const last = await this.#openLogin(uid);
    const until = performance.now() + KICK_MS;
    while (before !== undefined && before.endedWith === undefined && performance.now() < until)
      await pause(20);
    if (before !== undefined && before.endedWith === undefined)
      this.problems.push(
        `${uid}: login ${before.number} is open although a newer login is open too`,
      );
    await last.client.ping();
    last.client.kill();
  }

  /** Calls a random node. Returns the status, or `undefined` if there was no answer. */
  async #post(path: string, body: unknown): Promise<number | undefined> {
    try {
      const { status } = await this.#nodes.callOf(this.#nodes.anyNode(), path, body);
      if (status !== 200) this.counts.unacknowledged++;
      return status;
    } catch {
      this.counts.unacknowledged++;
      await pause(this.#settledMs);
      return undefined;
    }
  }

  async #pause(factor = 1): Promise<void> {
    await pause(this.#random.below(factor * MAX_PAUSE_MS));
  }
}

const clubOf = (number: number): string => `club-${number}`;

async function isAccepted(login: {
  readonly port: number;
  readonly uid: string;
  readonly token: string;
}): Promise<boolean> {
  try {
    const client = await connectNative(undefined, { ...login, timeoutMs: TIMEOUT_MS });
    client.kill();
    await client.closed;
    return true;
  } catch (error) {
    if (error instanceof NativeClientError && error.code === "unauthorized") return false;
    throw error;
  }
}
