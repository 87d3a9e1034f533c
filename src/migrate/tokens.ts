// Whose access tokens are while the data moves that they are in: Redis says so once they were moved, before that the folder. State: the folder's tokens
// as of the last look into it, which may be as long ago as the last opening of the folder.

import { BrokerError } from "../broker/errors.ts";
import type { RedisLink } from "../redis/link.ts";
import type { SourceLook } from "../store/moved.ts";
import { accessTokenOwner } from "../store/redis/steps/managers.ts";

const RETRY_AFTER_MS = 5000;

/** Where the tokens are now. */
export interface TokensNow {
  /** Undefined: there is no connection at the moment. */
  readonly link: Pick<RedisLink, "call" | "keys" | "isUp"> | undefined;
  /** All tokens are in Redis. */
  readonly areMoved: boolean;
}

export class MovingTokens {
  readonly #clock: () => number;
  #inFolder: SourceLook["tokens"] | undefined;

  constructor(clock: () => number) {
    this.#clock = clock;
  }

  /** What the folder has now; undefined: it cannot be looked into. */
  learn(look: SourceLook | undefined): void {
    this.#inFolder = look?.tokens;
  }

  /** The owner as stored; undefined: the token is nobody's. Throws `unavailable` while neither the folder nor Redis can say. */
  async ownerOf(
    hash: Uint8Array,
    { link, areMoved }: TokensNow,
  ): Promise<string | undefined> {
    const up = link?.isUp === true ? link : undefined;
    if (this.#inFolder !== undefined && !(areMoved && up !== undefined))
      return this.#ownerInFolder(this.#inFolder, hash);
    if (up === undefined) throw unjudged();
    const parts = { link: up, clock: this.#clock };
    const owner = await accessTokenOwner(parts, hash);
    if (owner === undefined && !areMoved) throw unjudged();
    return owner;
  }

  #ownerInFolder(
    tokens: SourceLook["tokens"],
    hash: Uint8Array,
  ): string | undefined {
    const owner = tokens.get(Buffer.from(hash).toString("hex"));
    const isValid = owner !== undefined && this.#clock() < owner.expiresAtMs;
    return isValid ? owner.owner : undefined;
  }
}

function unjudged(): BrokerError {
  return new BrokerError("unavailable", {
    message:
      "Whose access token this is cannot be told before the managers' data is moved; the static token of api.token can be used",
    retryAfterMs: RETRY_AFTER_MS,
  });
}
