// Run by `npm run lint` of clients/typescript, which has ESLint. What this benchmark installs is not
// needed for that: so no rule asks for a type.
import client, { withoutTypes } from '../../clients/typescript/eslint.config.js';

export default [...client, withoutTypes];
