// Part of the session contract: which sessions a login ends, by the tables of `kick-cases.ts`, with
// two nodes in turn. A presence event is published if and only if the user's sessions change.

import type { Test } from "tap";
import type { CloseReason } from "../../src/broker/errors.ts";
import {
  type DeviceFlag,
  type DeviceLevel,
  MAIN_DEVICE,
  presenceTopic,
  SECONDARY_DEVICE,
  userTopic,
} from "../../src/broker/model.ts";
import type { Claim, LoggedInSession } from "../../src/broker/ports.ts";
import { tokenTag } from "../../src/broker/tokens.ts";
import {
  type ContractNode,
  type NodeDriver,
  sessionOf,
  sessionsOf,
  uniqueUid,
} from "./cluster-fixture.ts";
import {
  type FirstDevice,
  KICK_CASES,
  OTHER_FLAG_OUTCOME,
  PAIR_OUTCOMES,
  type PairOutcome,
  type SecondDevice,
} from "./kick-cases.ts";

export async function kicks(t: Test, driver: NodeDriver): Promise<void> {
  const nodes = [await driver.open(t), await driver.open(t)] as const;

  for (const flag of ["", " web"] as const)
    for (const [first, row] of Object.entries(PAIR_OUTCOMES))
      t.test(
        `a second login${flag && " with a different flag"} affects a ${first} session as the kick rule specifies`,
        async (t) => {
          for (const [second, expected] of Object.entries(row)) {
            const pair = [first as FirstDevice, second as SecondDevice] as const;
            const outcome = await playPair(new User(nodes), pair, flag);
            const expectedOutcome = flag === "" ? expected : OTHER_FLAG_OUTCOME;
            t.same(outcome, expectedOutcome, `the second login is ${second}`);
          }
        },
      );

  for (const { title, lines, remaining } of KICK_CASES)
    t.test(title, async (t) => {
      const user = new User(nodes);
      for (const [at, [call, result = "done", ended = ""]] of lines.entries()) {
        const step = await user.step(call);
        const expected = { result, ended, isPublished: step.isChanged };
        const { isChanged: _, ...actual } = step;
        t.same(actual, expected, `line ${at + 1} (${call}) has the expected outcome`);
      }
      t.equal(await user.names(), remaining, "the store has the remaining sessions");
    });
}

/** Logs two sessions in and returns the outcome for the first one. */
async function playPair(
  user: User,
  [first, second]: readonly [FirstDevice, SecondDevice],
  flag: string,
): Promise<PairOutcome> {
  await user.step(`first: ${first}`);
  const { ended } = await user.step(`second: ${second}${flag}`);
  const confirmed = (await user.step("confirm first")).result;
  const continued = await user.step(`again: ${first} continues first`);
  return [
    ended.replace(/^first /, "") || "stays",
    confirmed.replace(/^refused /, ""),
    continued.result.replace(/^(refused|entered as) /, ""),
  ] as unknown as PairOutcome; // the comparison fails if the outcome has a different form
}

/** The effects of one call. */
interface Step {
  readonly result: string;
  /** Names of the ended sessions, each with its reason. */
  readonly ended: string;
  /** True if a presence event of the user was published. */
  readonly isPublished: boolean;
  /** True if the user's sessions in the store changed. */
  readonly isChanged: boolean;
}

/**
 * A user whose sessions log in on two nodes in turn. The first node observes the published events.
 */
class User {
  readonly uid = uniqueUid();
  readonly #nodes: readonly [ContractNode, ContractNode];
  readonly #logins = new Map<string, LoggedInSession>();
  #turn = 0;

  constructor(nodes: readonly [ContractNode, ContractNode]) {
    this.#nodes = nodes;
  }

  async step(call: string): Promise<Step> {
    const [{ cluster, events }] = this.#nodes;
    await cluster.listen(userTopic(this.uid));
    await cluster.listen(presenceTopic(this.uid));
    const [from, entriesBefore] = [events.length, await this.#entries()];
    const result = await this.#run(call);
    await cluster.barrier();
    const published = events.slice(from);
    const ended = published.flatMap((event) =>
      event.kind === "end_session" && event.uid === this.uid
        ? [`${this.#nameOf(event.sessionId)} ${event.reason}`]
        : [],
    );
    return {
      result,
      ended: ended.sort().join(", "),
      isPublished: published.some((e) => e.kind === "presence" && e.uid === this.uid),
      isChanged: entriesBefore !== (await this.#entries()),
    };
  }

  /** Returns the names of the user's sessions in the store. */
  async names(): Promise<string> {
    const sessions = await sessionsOf(this.#node.store, this.uid);
    const names = sessions.map((session) => this.#nameOf(session.sessionId));
    return names.sort().join(" ");
  }

  get #node(): ContractNode {
    this.#turn += 1;
    return this.#nodes[this.#turn % 2 === 0 ? 0 : 1];
  }

  /** Returns the sessions and the times of their connections as text, for comparison. */
  async #entries(): Promise<string> {
    const [entries = []] = await this.#nodes[0].store.sessionsOf([this.uid]);
    return entries
      .map((entry) => `${entry.session.sessionId} ${entry.since}`)
      .sort()
      .join();
  }

  #nameOf(sessionId: string): string | undefined {
    for (const [name, { session }] of this.#logins)
      if (session.sessionId === sessionId) return name;
    return undefined;
  }

  #login(name: string | undefined): LoggedInSession {
    const login = this.#logins.get(name ?? "");
    if (login === undefined) throw new Error(`there is no session ${name}`);
    return login;
  }

  async #run(call: string): Promise<string> {
    const [kind = "", name, detail] = call.split(" ");
    const { store } = this.#node;
    if (kind.endsWith(":")) return this.#enter(kind.slice(0, -1), call);
    switch (kind) {
      case "leave":
        await store.removeSession(this.#login(name).session);
        return "done";
      case "end":
        await store.endSession(
          this.#login(name).session,
          detail as CloseReason, // the tables contain valid reasons
        );
        return "done";
      case "token":
      case "logout": {
        const level = levelOf(call);
        const tokenHash = kind === "token" ? hash(name) : new Uint8Array();
        await store.putDevice({ uid: this.uid, flag: 0, level, tokenHash });
        return "done";
      }
      case "ban":
      case "unban":
        await store.putBan(this.uid, kind === "ban");
        return "done";
      case "confirm": {
        const login = this.#login(name);
        const { cluster } = this.#nodes[0];
        const [confirmation] = await store.confirmSessions([login], cluster.incarnation);
        if (confirmation === undefined) throw new Error("no confirmation was returned");
        if (confirmation.kind !== "refused") return confirmation.kind;
        return `refused ${confirmation.reason}`;
      }
      default:
        throw new Error(`unknown call: ${call}`);
    }
  }

  async #enter(name: string, call: string): Promise<string> {
    const word = (keyword: string) => new RegExp(` ${keyword} (\\S+)`).exec(call)?.[1];
    const { cluster, store } = this.#node;
    const flag: DeviceFlag = call.includes(" web") ? 1 : 0;
    const deviceId = / (d\d)/.exec(call)?.[1] ?? "";
    const token = word("token");
    const sessionId = this.#logins.get(name)?.session.sessionId;
    const session = {
      ...sessionOf(cluster, this.uid, { flag, level: levelOf(call), deviceId }),
      tokenTag: token === undefined ? "" : tokenTag(hash(token)),
      ...(sessionId === undefined ? {} : { sessionId }),
    };
    const claim = this.#claim(word("continues"), word("label"));
    const tokenHash = token === undefined ? undefined : hash(token);
    const terms = { claim, tokenHash };
    const { incarnation } = this.#nodes[0].cluster;
    const login = await store.login(session, incarnation, terms);
    if (login.kind === "refused") return `refused ${login.reason}`;
    if (login.kind === "unauthorized") return login.kind;
    const earlier = [...this.#logins].find(
      ([, { order, session }]) => order === login.order && session.flag === flag,
    );
    this.#logins.set(name, login);
    return earlier === undefined ? "entered" : `entered as ${earlier[0]}`;
  }

  #claim(continued: string | undefined, label: string | undefined): Claim | undefined {
    if (label !== undefined) return { label };
    return continued === undefined ? undefined : { order: this.#login(continued).order };
  }
}

function levelOf(call: string): DeviceLevel {
  return /\bmain\b/.test(call) ? MAIN_DEVICE : SECONDARY_DEVICE;
}

const hash = (token = "") => new Uint8Array(Buffer.alloc(32, token));
