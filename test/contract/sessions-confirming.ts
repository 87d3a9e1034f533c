// The part of the sessions' contract about those that a node confirms, because it may have missed that they were ended: whatever ended them, they stay
// ended.

import type { Test } from "tap";
import type { CloseReason } from "../../src/broker/errors.ts";
import {
  type Device,
  type DeviceLevel,
  MAIN_DEVICE,
  SECONDARY_DEVICE,
} from "../../src/broker/model.ts";
import type { LoggedIn } from "../../src/broker/ports.ts";
import { tokenTag } from "../../src/broker/tokens.ts";
import {
  type ContractNode,
  freshUid,
  type Kind,
  type NodeDriver,
  sessionOf,
  sessionsOf,
} from "./cluster-bench.ts";

const hash = (token: string) => new Uint8Array(Buffer.alloc(32, token));

const NAMED = { deviceId: "d1" } as const;
const OTHER = { deviceId: "d2" } as const;

/** One user, whose first session's node hears of nothing. */
class User {
  readonly uid = freshUid();
  readonly #node: ContractNode;

  constructor(node: ContractNode) {
    this.#node = node;
  }

  async putToken(token: string, level: DeviceLevel): Promise<void> {
    const tokenHash = token === "" ? new Uint8Array() : hash(token);
    const device: Device = { uid: this.uid, flag: 0, level, tokenHash };
    await this.#node.store.putDevice(device);
  }

  /** Past the node's directory, which would confirm the session by itself. */
  async enter(kind: Kind, token = ""): Promise<LoggedIn> {
    const { cluster, store } = this.#node;
    const tag = token === "" ? "" : tokenTag(hash(token));
    const session = {
      ...sessionOf(cluster, this.uid, kind),
      tokenTag: tag,
    };
    const terms = token === "" ? {} : { tokenHash: hash(token) };
    const entered = await store.login(session, cluster.incarnation, terms);
    if (entered.kind !== "entered") throw new Error(entered.kind);
    return entered;
  }

  async leave({ session }: LoggedIn): Promise<void> {
    await this.#node.store.removeSession(session);
  }

  async end({ session }: LoggedIn, reason: CloseReason): Promise<void> {
    await this.#node.store.endSession(session, reason);
  }
}

interface Case {
  readonly what: string;
  readonly kind: Kind;
  /** It logged in with the token "a". */
  readonly hasToken?: boolean;
  readonly after: (u: User, first: LoggedIn) => Promise<void>;
  readonly is: "confirmed" | CloseReason;
}

const main = { level: MAIN_DEVICE } as const;
const secondary = { level: SECONDARY_DEVICE } as const;
const nothing = async () => {};

const CASES: readonly Case[] = [
  { what: "a main", kind: main, after: nothing, is: "confirmed" },
  { what: "a secondary", kind: secondary, after: nothing, is: "confirmed" },
  {
    what: "a main, behind a main login of another device",
    kind: { ...main, ...NAMED },
    after: async (u) => void (await u.enter({ ...main, ...OTHER })),
    is: "kicked",
  },
  {
    what: "a main, behind one of another device that left",
    kind: { ...main, ...NAMED },
    after: async (u) => u.leave(await u.enter({ ...main, ...OTHER })),
    is: "kicked",
  },
  {
    what: "a main, behind one of another flag",
    kind: main,
    after: async (u) => void (await u.enter({ ...main, flag: 1 })),
    is: "confirmed",
  },
  {
    what: "a secondary, behind a main login",
    kind: secondary,
    after: async (u) => void (await u.enter(main)),
    is: "confirmed",
  },
  ...[main, secondary].flatMap((level): Case[] => {
    const kind = { ...level, ...NAMED };
    const name = level === main ? "a main" : "a secondary";
    return [
      {
        what: `${name}, behind a login of its own device`,
        kind,
        after: async (u) => void (await u.enter(kind)),
        is: "replaced",
      },
      {
        what: `${name}, behind one of its own device that left`,
        kind,
        after: async (u) => u.leave(await u.enter(kind)),
        is: "replaced",
      },
      {
        what: `${name} that was ended`,
        kind,
        after: (u, first) => u.end(first, "logged_out"),
        is: "logged_out",
      },
      {
        what: `${name} whose device logged out`,
        ...{ kind, hasToken: true },
        after: (u) => u.putToken("", level.level),
        is: "logged_out",
      },
      {
        what: `${name} that was ended, and whose token was registered again`,
        ...{ kind, hasToken: true },
        async after(u, first) {
          await u.putToken("", level.level);
          await u.end(first, "logged_out");
          await u.putToken("a", level.level);
        },
        is: "logged_out",
      },
      {
        what: `${name} whose device has another token`,
        ...{ kind, hasToken: true },
        after: (u) => u.putToken("b", level.level),
        is: level === main ? "token_changed" : "confirmed",
      },
    ];
  }),
];

export async function confirming(t: Test, driver: NodeDriver): Promise<void> {
  const { cluster, store } = await driver.open(t);
  const node = await driver.open(t);

  const confirm = async (all: readonly LoggedIn[]) => {
    const results = await store.confirmSessions(all, cluster.incarnation);
    return results.map((one) =>
      one.kind === "refused" ? one.reason : one.kind,
    );
  };

  for (const { what, kind, hasToken = false, after, is } of CASES)
    t.test(`${what}: ${is}`, async (t) => {
      const u = new User(node);
      const level = kind.level ?? MAIN_DEVICE;
      if (hasToken) await u.putToken("a", level);
      const first = await u.enter(kind, hasToken ? "a" : "");
      await after(u, first);
      for (const time of ["once", "again"]) {
        t.same(await confirm([first]), [is], time);
        const found = await sessionsOf(store, u.uid);
        const isIn = found.some(
          ({ sessionId }) => sessionId === first.session.sessionId,
        );
        t.equal(isIn, is === "confirmed", `in the store, ${time}`);
      }
    });

  t.test("of many each has its own answer, in their order", async (t) => {
    const asked: LoggedIn[] = [];
    const expected: string[] = [];
    for (let at = 0; at < 120; at++) {
      const u = new User(node);
      asked.push(await u.enter(at % 2 ? main : secondary));
      const last = asked.at(-1) as LoggedIn; // just pushed
      if (at % 3 === 0) await u.end(last, "logged_out");
      expected.push(at % 3 === 0 ? "logged_out" : "confirmed");
    }
    t.same(await confirm(asked), expected);
    t.same(await confirm([]), []);
  });
}
