/** Asks for the token. */

import { useState } from "preact/hooks";
import { errorMessage } from "../api/api-error";
import { setToken } from "../api/token";
import { signIn } from "../state/server-state";

/** `message` says why the user has to sign in again. */
export function SignInView({ message }: { message: string | null }) {
  const [value, setValue] = useState("");
  const [error, setError] = useState<string | null>(message);
  const [busy, setBusy] = useState(false);
  const submit = async (event: Event) => {
    event.preventDefault();
    const secret = value.trim();
    if (!secret || busy) return;
    setBusy(true);
    setToken(secret);
    try {
      await signIn();
    } catch (reason) {
      setToken(null);
      setError(errorMessage(reason));
    }
    setBusy(false);
  };
  return (
    <main class="sign-in">
      <form class="card" onSubmit={(event) => void submit(event)}>
        <h1>
          <img src="/icon.svg" alt="" width={28} height={28} /> stretto
        </h1>
        <label>
          Token
          <input
            type="password"
            name="token"
            autocomplete="off"
            spellcheck={false}
            placeholder="st_…"
            value={value}
            aria-invalid={error !== null}
            aria-describedby="token-help"
            onInput={(event) => setValue(event.currentTarget.value)}
          />
        </label>
        {error && (
          <p class="error" role="alert">
            {error}
          </p>
        )}
        <button type="submit" class="primary" disabled={busy || !value.trim()}>
          {busy ? "Signing in …" : "Sign in"}
        </button>
        <p id="token-help" class="muted">
          <code>stretto serve</code> prints an address that contains a token, and stores the token in <code>login.json</code> in its
          home (<code>~/.stretto</code>). Administrators create further tokens. This page keeps the token in this tab only.
        </p>
      </form>
    </main>
  );
}
