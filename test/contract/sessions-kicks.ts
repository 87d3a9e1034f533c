// The part of the sessions' contract about who ends whom, by the tables of `kick-cases.ts`, on two
// nodes in turn. What changes a user's sessions is published to those who watch the user, and
// nothing else is.

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
  MEETINGS,
  type Meeting,
  OTHER_FLAG,
  type SecondDevice,
} from "./kick-cases.ts";

export async function kicks(t: Test, driver: NodeDriver): Promise<void> {
  const nodes = [await driver.open(t), await driver.open(t)] as const;

  for (const flag of ["", " web"] as const)
    for (const [first, row] of Object.entries(MEETINGS))
      t.test(`a ${first} session and a second one${flag}`, async (t) => {
        for (const [second, expected] of Object.entries(row)) {
          const pair = [first as FirstDevice, second as SecondDevice] as const;
          const found = await meet(new User(nodes), pair, flag);
          const as = flag === "" ? expected : OTHER_FLAG;
          t.same(found, as, second);
        }
      });

  for (const { what, lines, left } of KICK_CASES)
    t.test(what, async (t) => {
      const user = new User(nodes);
      for (const [at, [call, answer = "done", ended = ""]] of lines.entries()) {
        const found = await user.step(call);
        const expected = { answer, ended, isTold: found.isChanged };
        const { isChanged: _, ...heard } = found;
        t.same(heard, expected, `line ${at + 1}: ${call}`);
      }
      t.equal(await user.names(), left, "in the store");
    });
}

/** What becomes of the first session of two. */
async function meet(
  user: User,
  [first, second]: readonly [FirstDevice, SecondDevice],
  flag: string,
): Promise<Meeting> {
  await user.step(`first: ${first}`);
  const { ended } = await user.step(`second: ${second}${flag}`);
  const confirmed = (await user.step("confirm first")).answer;
  const again = await user.step(`again: ${first} continues first`);
  return [
    ended.replace(/^first /, "") || "stays",
    confirmed.replace(/^refused /, ""),
    again.answer.replace(/^(refused|entered as) /, ""),
  ] as unknown as Meeting; // or what differs from it
}

interface Step {
  readonly answer: string;
  /** Sessions it ended, by their names. */
  readonly ended: string;
  /** Those who watch the user were told. */
  readonly isTold: boolean;
  /** Sessions came or went. */
  readonly isChanged: boolean;
}

/** A user whose sessions come on the nodes in turn; the first of them hears what is published. */
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
    const [from, before] = [events.length, await this.#entries()];
    const answer = await this.#take(call);
    await cluster.barrier();
    const heard = events.slice(from);
    const ended = heard.flatMap((one) =>
      one.kind === "end_session" && one.uid === this.uid
        ? [`${this.#nameOf(one.sessionId)} ${one.reason}`]
        : [],
    );
    return {
      answer,
      ended: ended.sort().join(", "),
      isTold: heard.some((e) => e.kind === "presence" && e.uid === this.uid),
      isChanged: before !== (await this.#entries()),
    };
  }

  /** The sessions in the store. */
  async names(): Promise<string> {
    const sessions = await sessionsOf(this.#node.store, this.uid);
    const names = sessions.map((one) => this.#nameOf(one.sessionId));
    return names.sort().join(" ");
  }

  get #node(): ContractNode {
    this.#turn += 1;
    return this.#nodes[this.#turn % 2 === 0 ? 0 : 1];
  }

  /** The sessions and their connections, to be compared. */
  async #entries(): Promise<string> {
    const [entries = []] = await this.#nodes[0].store.sessionsOf([this.uid]);
    return entries
      .map((one) => `${one.session.sessionId} ${one.since}`)
      .sort()
      .join();
  }

  #nameOf(sessionId: string): string | undefined {
    for (const [name, { session }] of this.#logins)
      if (session.sessionId === sessionId) return name;
    return undefined;
  }

  #login(name: string | undefined): LoggedInSession {
    const found = this.#logins.get(name ?? "");
    if (found === undefined) throw new Error(`there is no session ${name}`);
    return found;
  }

  async #take(call: string): Promise<string> {
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
          detail as CloseReason, // as the table names it
        );
        return "done";
      case "token":
      case "logout": {
        const level = levelOf(call);
        const tokenHash = kind === "token" ? hash(name) : new Uint8Array();
        await store.putDevice({ uid: this.uid, flag: 0, level, tokenHash });
        return "done";
      }
      case "confirm": {
        const login = this.#login(name);
        const { cluster } = this.#nodes[0];
        const [answer] = await store.confirmSessions([login], cluster.incarnation);
        if (answer === undefined) throw new Error("no answer");
        if (answer.kind !== "refused") return answer.kind;
        return `refused ${answer.reason}`;
      }
      default:
        throw new Error(`no call: ${call}`);
    }
  }

  async #enter(name: string, call: string): Promise<string> {
    const word = (before: string) => new RegExp(` ${before} (\\S+)`).exec(call)?.[1];
    const { cluster, store } = this.#node;
    const flag: DeviceFlag = call.includes(" web") ? 1 : 0;
    const deviceId = / (d\d)/.exec(call)?.[1] ?? "";
    const token = word("token");
    const known = this.#logins.get(name)?.session.sessionId;
    const session = {
      ...sessionOf(cluster, this.uid, { flag, level: levelOf(call), deviceId }),
      tokenTag: token === undefined ? "" : tokenTag(hash(token)),
      ...(known === undefined ? {} : { sessionId: known }),
    };
    const claim = this.#claim(word("continues"), word("label"));
    const tokenHash = token === undefined ? undefined : hash(token);
    const terms = { claim, tokenHash };
    const { incarnation } = this.#nodes[0].cluster;
    const placed = await store.login(session, incarnation, terms);
    if (placed.kind === "refused") return `refused ${placed.reason}`;
    if (placed.kind === "unauthorized") return placed.kind;
    const first = [...this.#logins].find(
      ([
        ,
        {
          order,
          session: { flag: other },
        },
      ]) => order === placed.order && other === flag,
    );
    this.#logins.set(name, placed);
    return first === undefined ? "entered" : `entered as ${first[0]}`;
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
