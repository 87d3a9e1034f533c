// Key agreement, encryption and signatures of WKProto. State: per connection, its
// keys, and an AES context each way once it is used. The weak parts (64 bits of key, a constant
// IV, MD5) are the protocol's; TLS is what protects a connection.

import {
  type Cipher,
  createCipheriv,
  createDecipheriv,
  createHash,
  createPublicKey,
  type Decipher,
  diffieHellman,
  generateKeyPairSync,
  type KeyObject,
  randomBytes,
} from "node:crypto";

const ALGORITHM = "aes-128-cbc";
const BLOCK_BYTES = 16;
const KEY_BYTES = 32;
const SALT_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
/** The greatest multiple of the letters' number in a byte: random bytes from it on are not used. */
const FAIR_BYTES = 248;
const BASE64 = /^[A-Za-z0-9+/]*={0,2}$/;

/** What the server tells the client in CONNACK. */
export interface ServerKeys {
  /** Base64 of the public key. */
  readonly serverKey: string;
  readonly salt: string;
}

/** Undefined: the client's key is no base64 of 32 bytes, or gives a secret that anybody knows. */
export function agree(
  clientKey: string,
): { readonly keys: ServerKeys; readonly cipher: PayloadCipher } | undefined {
  const client = publicKeyOf(clientKey);
  if (client === undefined) return undefined;
  const own = generateKeyPairSync("x25519");
  const secret = secretOf(own.privateKey, client);
  if (secret === undefined) return undefined;
  const salt = randomSalt();
  const serverKey = Buffer.from(
    own.publicKey.export({ format: "jwk" }).x ?? "",
    "base64url",
  ).toString("base64");
  return {
    keys: { serverKey, salt },
    cipher: new PayloadCipher(aesKeyOf(secret), salt),
  };
}

function publicKeyOf(base64: string): KeyObject | undefined {
  if (base64.length !== 44 || !BASE64.test(base64)) return undefined;
  const bytes = Buffer.from(base64, "base64");
  if (bytes.length !== KEY_BYTES) return undefined;
  const x = bytes.toString("base64url");
  const key = { kty: "OKP", crv: "X25519", x };
  return createPublicKey({ key, format: "jwk" });
}

/** Undefined: the public key is of low order. */
function secretOf(privateKey: KeyObject, publicKey: KeyObject): Buffer | undefined {
  try {
    const secret = diffieHellman({ privateKey, publicKey });
    return secret.every((byte) => byte === 0) ? undefined : secret;
  } catch {
    return undefined; // OpenSSL refuses a secret of zeros
  }
}

/** The AES key of a shared secret, as text. */
function aesKeyOf(secret: Buffer): string {
  return md5Hex(secret.toString("base64")).slice(0, BLOCK_BYTES);
}

function randomSalt(): string {
  let salt = "";
  while (salt.length < BLOCK_BYTES)
    for (const byte of randomBytes(2 * BLOCK_BYTES))
      if (byte < FAIR_BYTES && salt.length < BLOCK_BYTES)
        salt += SALT_LETTERS[byte % SALT_LETTERS.length];
  return salt;
}

/** The md5 of an ASCII text, in lower-case hex. */
function md5Hex(text: string): string {
  return createHash("md5").update(text, "latin1").digest("hex");
}

/** The text with PKCS7 padding behind it: whole blocks, as a cipher takes them. */
export function pad(prefix: string, text: Uint8Array): Buffer {
  const prefixBytes = Buffer.byteLength(prefix);
  const bytes = prefixBytes + text.length;
  const padding = BLOCK_BYTES - (bytes % BLOCK_BYTES);
  const padded = Buffer.allocUnsafe(bytes + padding);
  padded.write(prefix, 0);
  padded.set(text, prefixBytes);
  padded.fill(padding, bytes);
  return padded;
}

/** What a padded text was; undefined: it has no padding. */
function unpad(padded: Buffer): Buffer | undefined {
  const padding = padded[padded.length - 1] ?? 0;
  if (padding === 0 || padding > BLOCK_BYTES) return undefined;
  const end = padded.length - padding;
  const isWhole = padded.subarray(end).every((byte) => byte === padding);
  return isWhole ? padded.subarray(0, end) : undefined;
}

/** An AES context and the last encrypted block that went through it. */
interface Chain<C> {
  readonly context: C;
  readonly last: Buffer;
}

/**
 * Encrypts and decrypts with a connection's key. Each text begins with the same IV, but a new
 * context costs several times what a message does: one is kept in each direction, and the first
 * block is changed so that the chain goes on as if it began anew.
 */
export class PayloadCipher {
  readonly #key: Buffer;
  readonly #iv: Buffer;
  #encryption: Chain<Cipher> | undefined;
  #decryption: Chain<Decipher> | undefined;

  /** Both of 16 ASCII characters. */
  constructor(key: string, iv: string) {
    this.#key = Buffer.from(key, "latin1");
    this.#iv = Buffer.from(iv, "latin1");
  }

  /** Base64 of the encrypted text, which comes from `pad`. */
  encrypt(padded: Buffer): string {
    this.#encryption ??= {
      context: createCipheriv(ALGORITHM, this.#key, this.#iv).setAutoPadding(false),
      last: Buffer.from(this.#iv),
    };
    const { context, last } = this.#encryption;
    this.#rechain(padded, last);
    const encrypted = context.update(padded);
    this.#rechain(padded, last); // the caller's text again
    encrypted.copy(last, 0, encrypted.length - BLOCK_BYTES);
    return encrypted.toString("base64");
  }

  /** Undefined: that is no base64 of an encrypted text. */
  decrypt(base64: Buffer): Buffer | undefined {
    const text = base64.toString("latin1");
    if (text.length % 4 !== 0 || !BASE64.test(text)) return undefined;
    const encrypted = Buffer.from(text, "base64");
    if (encrypted.length === 0 || encrypted.length % BLOCK_BYTES !== 0) return undefined;
    this.#decryption ??= {
      context: createDecipheriv(ALGORITHM, this.#key, this.#iv).setAutoPadding(false),
      last: Buffer.from(this.#iv),
    };
    const { context, last } = this.#decryption;
    const padded = context.update(encrypted);
    this.#rechain(padded, last);
    encrypted.copy(last, 0, encrypted.length - BLOCK_BYTES);
    return unpad(padded);
  }

  /** The msgKey of a text from `pad`. */
  sign(padded: Buffer): string {
    return md5Hex(this.encrypt(padded));
  }

  /** Makes a first block that follows on `last` one that follows on the IV, or the reverse. */
  #rechain(blocks: Buffer, last: Buffer): void {
    for (let i = 0; i < BLOCK_BYTES; i++)
      blocks[i] = (blocks[i] ?? 0) ^ (last[i] ?? 0) ^ (this.#iv[i] ?? 0);
  }
}
