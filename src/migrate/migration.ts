// Moves the data of an embedded store's folder into Redis before a node serves anybody: one process does it, others wait for it and tell how it
// stands. What fails is tried again, later each time, unless that cannot help. State: how it stands, whose access tokens are, whether it is to end.

import { setTimeout as pause } from "node:timers/promises";
import { BrokerError } from "../broker/errors.ts";
import { MoveStuck } from "./attempt.ts";
import { type FollowParts, follow, isOurs } from "./follow.ts";
import { asProblem, isUnusable, Links } from "./links.ts";
import { isClaim, readMove } from "./record.ts";
import { type MigrationState, Standing } from "./standing.ts";
import { MovingTokens } from "./tokens.ts";

export interface MigrationParts
  extends Omit<FollowParts, "standing" | "assertOpen" | "pause"> {
  /** A link that is not started; each look and each attempt has its own. */
  readonly connect: ConstructorParameters<typeof Links>[0];
  /** An attempt failed; another follows in so many milliseconds, or (undefined) none: it could not help. */
  readonly onFailure: (error: BrokerError, retryMs: number | undefined) => void;
}

/** Between two looks at what becomes of a claim. */
const CLAIMED_MS = 250;
const RETRY_MS = 1000;
/** The longest pause between two tries. */
export const MAX_RETRY_MS = 30_000;

export class Migration {
  readonly #parts: MigrationParts;
  readonly #links: Links;
  readonly #closing = new AbortController();
  readonly #standing = new Standing();
  readonly #tokens: MovingTokens;

  constructor(parts: MigrationParts) {
    this.#parts = parts;
    this.#links = new Links(parts.connect);
    this.#tokens = new MovingTokens(parts.clock);
  }

  get state(): MigrationState {
    return this.#standing.state;
  }

  /** The data is there. */
  get isOver(): boolean {
    const { status } = this.state;
    return status === "completed" || status === "migrated";
  }

  /**
   * Whether there is something to wait for. Without a folder to move that is not known, and not said, while Redis is away. Throws `internal` with a
   * sentence when Redis holds what this build cannot use.
   */
  async isPending(): Promise<boolean> {
    const standing = this.#standing;
    const hasFolder = this.#parts.folder !== undefined;
    await this.#lookForTokens();
    try {
      const { record } = await this.#links.use(readMove);
      standing.counted(record);
      const isDone =
        record === undefined
          ? !hasFolder
          : record.isDone && (await isOurs(this.#parts, record));
      if (isDone) standing.migrated(record);
      else standing.running(record?.step);
      return !isDone;
    } catch (error) {
      if (asProblem(error).code !== "unavailable") throw error;
      if (hasFolder) standing.running();
      return hasFolder;
    }
  }

  /** Throws `unavailable` with a sentence when a move began that nobody knew of when `isPending` was asked: to be called by a node that others see. */
  async assertNoneBegan(): Promise<void> {
    const { record } = await this.#links.use(readMove);
    if (record !== undefined && !record.isDone) throw began();
  }

  /**
   * The same for a node that serves, was dead for others and lives on, which they see: a move may have begun meanwhile that takes it for dead. Asks
   * until Redis answers and nobody merely claims it. Resolves after `close`.
   */
  async assertNoneBeganMeanwhile(): Promise<void> {
    const { signal } = this.#closing;
    while (!signal.aborted) {
      const now = await this.#links.use(readMove).catch(() => undefined);
      if (now !== undefined && !isClaim(now.record)) {
        if (now.record?.isDone === false) throw began();
        return;
      }
      await pause(CLAIMED_MS, undefined, { signal }).catch(() => undefined);
    }
  }

  /**
   * Whose access token it is, by its SHA-256, until the data is there; undefined: nobody's. Throws `unavailable` while that cannot be told. Before all
   * tokens are in Redis the folder's are those of the last look, before each opening: a logout at a node that still uses it is not noticed earlier.
   */
  accessTokenOwner(tokenHash: Uint8Array): Promise<string | undefined> {
    return this.#tokens.ownerOf(tokenHash, {
      link: this.#links.current,
      areMoved: this.#standing.hasPeople,
    });
  }

  /**
   * Resolves when the data is in Redis, however long that takes: where no try of this process can help it waits for another's. Throws `unavailable`
   * after `close`, and where nothing at all can help as `isPending`.
   */
  async run(): Promise<void> {
    for (let retryMs = RETRY_MS; ; ) {
      const error = await this.once().catch((thrown: unknown) => thrown);
      if (error === undefined) return;
      this.#assertOpen();
      const problem = asProblem(error);
      if (isUnusable(problem)) throw problem;
      const isStuck = problem instanceof MoveStuck;
      this.#parts.onFailure(problem, isStuck ? undefined : retryMs);
      if (isStuck) continue;
      await this.#pause(retryMs);
      retryMs = Math.min(retryMs * 2, MAX_RETRY_MS);
    }
  }

  /** The same, but what goes wrong is thrown, as a BrokerError or what the link's `start` throws. */
  async once(): Promise<void> {
    const standing = this.#standing;
    const before = standing.tries;
    try {
      await this.#links.use((link) => follow(this.#following(), link));
    } catch (error) {
      if (standing.tries === before) standing.tried(); // it did not get as far as the folder
      standing.failed(asProblem(error));
      throw error;
    }
  }

  /** Ends what is under way after its page. Safe to call twice. */
  close(): void {
    this.#closing.abort();
  }

  #following(): FollowParts {
    const { folder, ...parts } = this.#parts;
    return {
      ...{ ...parts, standing: this.#standing },
      folder: folder && {
        look: () => folder.look(),
        open: async () => {
          await this.#lookForTokens();
          return folder.open();
        },
      },
      assertOpen: () => this.#assertOpen(),
      pause: (ms) => this.#pause(ms),
    };
  }

  /** What is wrong with the folder is said when it is opened. */
  async #lookForTokens(): Promise<void> {
    const look = await this.#parts.folder?.look().catch(() => undefined);
    this.#tokens.learn(look);
  }

  async #pause(ms: number): Promise<void> {
    const { signal } = this.#closing;
    await pause(ms, undefined, { signal }).catch(() => undefined); // `close` ends it
    this.#assertOpen();
  }

  #assertOpen(): void {
    if (this.#closing.signal.aborted)
      throw new BrokerError("unavailable", {
        message: "The migration was ended; it goes on at the next start",
      });
  }
}

function began(): BrokerError {
  return new BrokerError("unavailable", {
    message:
      "Data is being moved into this Redis since a moment ago; start the node again, it then waits for it",
  });
}
